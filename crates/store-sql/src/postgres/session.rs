//! A conversation with the server: connected, set up, and with its statements at hand.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OnceCell, mpsc};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, Notification, Row, Statement};

use super::error::Failure;
use super::settings::{Pooler, Settings};
use super::statements::{QUERIES, Query};

/// The longest wait until a server has let us in and answered the first question.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// A parameter that comes through only where nothing is between us and the server.
const MARK: &str = "oncegate.session";

/// One session, or a pooler's likeness of one.
#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    pooling: Pooling,
    prepared: [OnceCell<Statement>; QUERIES],
    warnings: Arc<AtomicU64>,
}

/// Whether what is set in a session stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pooling {
    /// The session is ours.
    Direct,
    /// The next transaction may be in another session: nothing is prepared, nothing is set beyond a transaction.
    Pooled,
}

impl Session {
    /// Connects to the first server that takes writes, and sets the session up with `setup` if it is ours to keep.
    pub(super) async fn open(settings: &Settings, setup: &str) -> Result<Self, Failure> {
        Self::open_hearing(settings, setup, None).await
    }

    /// The same, passing on what is notified.
    pub(super) async fn open_hearing(
        settings: &Settings,
        setup: &str,
        heard: Option<mpsc::Sender<Notification>>,
    ) -> Result<Self, Failure> {
        let mut failure = Failure::Words("the URL names no server".to_owned());
        for server in &settings.servers {
            let opened = tokio::time::timeout(OPEN_TIMEOUT, open_one(settings, server, setup, heard.clone()));
            match opened.await {
                Ok(Ok(session)) => return Ok(session),
                // A replica among several servers is nothing to complain of, if another is worse.
                Ok(Err(Failure::ReadOnly)) if matches!(failure, Failure::Connect(_)) => {}
                Ok(Err(error)) => failure = error,
                Err(_) => failure = Failure::Connect("it did not answer in time".into()),
            }
        }
        Err(failure)
    }

    pub(super) const fn pooling(&self) -> Pooling {
        self.pooling
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// How many warnings the server has given so far: a commit that warns is not one to rely on.
    pub(super) fn warnings(&self) -> u64 {
        self.warnings.load(Ordering::Acquire)
    }

    /// Runs text that gives nothing.
    pub(super) async fn run(&self, text: &str) -> Result<(), Failure> {
        Ok(self.client.batch_execute(text).await?)
    }

    /// Makes `query` ready, so that its next use is one message and nothing before it.
    pub(super) async fn prepare(&self, query: &Query) -> Result<(), Failure> {
        if self.pooling == Pooling::Direct {
            self.statement(query).await?;
        }
        Ok(())
    }

    pub(super) async fn query(
        &self,
        query: &Query,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Failure> {
        match self.pooling {
            Pooling::Direct => {
                let statement = self.statement(query).await?;
                Ok(self.client.query(statement, params).await?)
            }
            Pooling::Pooled => {
                let bound: Vec<_> = params.iter().copied().zip(query.types.iter().cloned()).collect();
                Ok(self.client.query_typed(&query.text, &bound).await?)
            }
        }
    }

    /// Text that is made for one use.
    pub(super) async fn query_once(
        &self,
        text: &str,
        params: &[(&(dyn ToSql + Sync), tokio_postgres::types::Type)],
    ) -> Result<Vec<Row>, Failure> {
        Ok(self.client.query_typed(text, params).await?)
    }

    async fn statement(&self, query: &Query) -> Result<&Statement, Failure> {
        let prepare = || self.client.prepare_typed(&query.text, &query.types);
        Ok(self.prepared[query.number].get_or_try_init(prepare).await?)
    }
}

async fn open_one(
    settings: &Settings,
    server: &Config,
    setup: &str,
    heard: Option<mpsc::Sender<Notification>>,
) -> Result<Session, Failure> {
    if settings.pooler != Pooler::Transaction {
        match connect(settings, &marked(server), heard.clone()).await {
            Ok(session) if settings.pooler == Pooler::None || is_marked(&session).await? => {
                session.run(setup).await?;
                return Ok(session);
            }
            // Something in between has swallowed the mark.
            Ok(_) => {}
            // PgBouncer refuses parameters that it does not know.
            Err(Failure::Connect(error))
                if settings.pooler == Pooler::Detect && is_protocol_violation(&*error) => {}
            Err(failure) => return Err(failure),
        }
    }
    let mut session = connect(settings, server, heard).await?;
    session.pooling = Pooling::Pooled;
    Ok(session)
}

fn marked(server: &Config) -> Config {
    let mut marked = server.clone();
    let given = server.get_options().unwrap_or_default();
    marked.options(format!("{given} -c {MARK}=1"));
    marked
}

async fn is_marked(session: &Session) -> Result<bool, Failure> {
    let text = format!("SELECT current_setting('{MARK}', true) = '1'");
    let rows = session.query_once(&text, &[]).await?;
    Ok(rows.first().and_then(|row| row.get::<_, Option<bool>>(0)).unwrap_or(false))
}

fn is_protocol_violation(error: &(dyn std::error::Error + 'static)) -> bool {
    let error = error.downcast_ref::<tokio_postgres::Error>();
    error.and_then(tokio_postgres::Error::code) == Some(&SqlState::PROTOCOL_VIOLATION)
}

async fn connect(
    settings: &Settings,
    server: &Config,
    heard: Option<mpsc::Sender<Notification>>,
) -> Result<Session, Failure> {
    let warnings = Arc::new(AtomicU64::new(0));
    let client = if let Some(connector) = settings.tls.connector() {
        let (client, connection) = server.connect(connector.clone()).await.map_err(refused)?;
        tokio::spawn(attend(connection, Arc::clone(&warnings), heard));
        client
    } else {
        let (client, connection) = server.connect(NoTls).await.map_err(refused)?;
        tokio::spawn(attend(connection, Arc::clone(&warnings), heard));
        client
    };
    Ok(Session {
        client,
        pooling: Pooling::Direct,
        prepared: std::array::from_fn(|_| OnceCell::new()),
        warnings,
    })
}

fn refused(error: tokio_postgres::Error) -> Failure {
    use std::error::Error as _;
    let io = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    if io.is_some_and(|io| io.kind() == std::io::ErrorKind::PermissionDenied) {
        return Failure::ReadOnly;
    }
    Failure::Connect(Box::new(error))
}

/// Moves bytes between the client and the server until either is gone, and watches what the server says unasked.
async fn attend<S, T>(
    mut connection: Connection<S, T>,
    warnings: Arc<AtomicU64>,
    heard: Option<mpsc::Sender<Notification>>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        match poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notice(notice))) if notice.code() == &SqlState::WARNING => {
                warnings.fetch_add(1, Ordering::AcqRel);
                tracing::warn!(words = notice.message(), detail = notice.detail(), "PostgreSQL warns");
            }
            Some(Ok(AsyncMessage::Notification(notification))) => {
                // Nobody who listens keeps up: the channel is closed, which says that something was missed.
                if heard.as_ref().is_some_and(|heard| heard.try_send(notification).is_err()) {
                    return;
                }
            }
            Some(Ok(_)) => {}
            // Whoever waits for an answer hears of it there.
            Some(Err(_)) | None => return,
        }
    }
}
