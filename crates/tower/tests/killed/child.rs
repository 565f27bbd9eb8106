//! A service as a process of its own, to be killed. The test's binary is its own child: started with a role in its environment it is
//! the service, otherwise it runs the test.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use axum::Router;

/// The service's process. Killed when dropped.
pub(crate) struct Service {
    process: Child,
    pub(crate) addr: SocketAddr,
}

impl Service {
    /// This very program, with these variables in its environment.
    pub(crate) fn start(role: &[(&str, &str)]) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .envs(role.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port: u16 = line.trim().parse().unwrap();
        Self { process, addr: SocketAddr::from(([127, 0, 0, 1], port)) }
    }
}

impl Drop for Service {
    /// SIGKILL.
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// The child's side: serves, and says where.
pub(crate) async fn serve(app: Router) {
    // Who started this is gone when its end of the pipe is.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    println!("{port}");
    axum::serve(listener, app).await.unwrap();
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}
