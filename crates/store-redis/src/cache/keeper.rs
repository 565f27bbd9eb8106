//! Keeps a connection: made in the background, probed, made again.

use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::Current;
use crate::address::Address;
use crate::link::{self, Connection};

/// How long a handshake or a probe may take: long beside a get, so that a slow server is not dialled in circles.
const PATIENCE: Duration = Duration::from_secs(1);
const PROBE_EVERY: Duration = Duration::from_secs(1);
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Keeper {
    address: Address,
    current: Arc<Current>,
}

impl Keeper {
    pub(super) const fn new(address: Address, current: Arc<Current>) -> Self {
        Self { address, current }
    }

    /// For as long as the thread runs.
    pub(super) async fn run(self) {
        let mut pause = RETRY_FIRST;
        loop {
            match timeout(PATIENCE, self.connect()).await {
                Ok(Ok((connection, driver))) => {
                    pause = RETRY_FIRST;
                    tracing::debug!("the shared cache at {:?} is there", self.address);
                    self.current.set(Some(connection.clone()));
                    watch(connection, &driver).await;
                    self.current.set(None);
                    driver.abort();
                    tracing::debug!("the shared cache at {:?} is lost", self.address);
                }
                Ok(Err(error)) => tracing::debug!("no shared cache at {:?}: {error}", self.address),
                Err(_) => tracing::debug!("no shared cache at {:?}: it does not answer", self.address),
            }
            sleep(pause).await;
            pause = RETRY_MAX.min(pause * 2);
        }
    }

    async fn connect(&self) -> Result<(Connection, JoinHandle<()>), RedisError> {
        let (connection, driver) = link::shake_hands(&self.address).await?;
        Ok((connection, tokio::spawn(driver)))
    }
}

/// Until the connection ends, or does not answer.
async fn watch(mut connection: Connection, driver: &JoinHandle<()>) {
    while !driver.is_finished() {
        sleep(PROBE_EVERY).await;
        match timeout(PATIENCE, redis::cmd("PING").query_async::<()>(&mut connection)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}
