//! Sockets that connections come from: TCP, or a Unix socket that only this user can reach.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::config::{ConfigError, ListenAddress};

/// A bound socket.
pub(crate) enum Socket {
    Tcp(TcpListener),
    Unix(UnixSocket),
}

/// A connection that was accepted.
pub(super) enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

/// A Unix socket. Its file is removed when it is dropped, unless another process has replaced it.
pub(crate) struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
    identity: (u64, u64),
}

impl Socket {
    /// Binds the address. `source` is the flag or key that the error names.
    pub(crate) async fn bind(address: &ListenAddress, source: &str) -> Result<Self, ConfigError> {
        match address {
            ListenAddress::Tcp(address) => bind_tcp(*address, source).await.map(Self::Tcp),
            ListenAddress::Unix(path) => bind_unix(path).await.map(Self::Unix).map_err(|words| {
                ConfigError::of(source, format!("unix:{} cannot be listened on: {words}", path.display()))
            }),
        }
    }

    /// Where it listens; the port is known only now if it was 0.
    pub(crate) fn address(&self) -> io::Result<ListenAddress> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(ListenAddress::Tcp),
            Self::Unix(socket) => Ok(ListenAddress::Unix(socket.path.clone())),
        }
    }

    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                let _ = stream.set_nodelay(true);
                Ok(Accepted::Tcp(stream, peer))
            }
            Self::Unix(socket) => Ok(Accepted::Unix(socket.listener.accept().await?.0)),
        }
    }
}

async fn bind_tcp(address: SocketAddr, source: &str) -> Result<TcpListener, ConfigError> {
    let bound: io::Result<TcpListener> = TcpListener::bind(address).await;
    bound.map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::AddrInUse => "; another process has it: stop that one, or choose another port",
            io::ErrorKind::PermissionDenied => "; ports under 1024 need a privilege: choose another port",
            _ => "",
        };
        ConfigError::of(source, format!("{address} cannot be listened on: {error}{advice}"))
    })
}

/// Binds in a folder that only this user can enter, and moves the socket to its path when its mode
/// is set: at no time can another user connect.
async fn bind_unix(path: &Path) -> Result<UnixSocket, String> {
    refuse_what_is_in_use(path).await?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let private = parent.unwrap_or(Path::new(".")).join(format!(".oncegate-{}", std::process::id()));
    // Left by a process with the same id, as in a container.
    let _ = fs::remove_dir_all(&private);
    let in_folder = |error: io::Error| format!("{} could not be created: {error}", private.display());
    DirBuilder::new().mode(0o700).create(&private).map_err(in_folder)?;
    let bound = bind_and_move(&private.join("socket"), path).map_err(|error| error.to_string());
    let _ = fs::remove_dir_all(&private);
    bound
}

fn bind_and_move(from: &Path, to: &Path) -> io::Result<UnixSocket> {
    let listener = UnixListener::bind(from)?;
    fs::set_permissions(from, Permissions::from_mode(0o600))?;
    let identity = identity(&fs::symlink_metadata(from)?);
    fs::rename(from, to)?;
    Ok(UnixSocket { listener, path: to.to_owned(), identity })
}

/// Only a socket on which no process listens may be replaced.
async fn refuse_what_is_in_use(path: &Path) -> Result<(), String> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.to_string()),
        Ok(found) if !found.file_type().is_socket() => {
            return Err("there is a file at this path that is not a socket; choose another path".to_owned());
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Ok(_) => Err("another process listens on it; stop that process, or choose another path".to_owned()),
        Err(error) => Err(format!("whether another process listens on it is not known: {error}")),
    }
}

/// Which file it is: inodes are numbered per device.
fn identity(file: &fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
