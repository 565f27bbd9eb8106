//! What the URL says.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use oncegate_store::history::Watermark;
use oncegate_store::{Effect, Kind, Result, StoreError};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use super::tls::Tls;

/// The longest wait for one server to let us in.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// All that is needed to connect.
#[derive(Debug)]
pub(super) struct Settings {
    /// One configuration for each server in the URL, in its order.
    pub(super) servers: Vec<Config>,
    pub(super) schema: Schema,
    pub(super) pooler: Pooler,
    pub(super) tls: Tls,
    /// What this handle has written last: no connection is used that does not show it.
    pub(super) watermark: Watermark,
}

/// What is between this process and PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooler {
    /// Find out.
    Detect,
    /// Nothing: a session is ours.
    None,
    /// A pooler that lends a session for the length of a transaction: PgBouncer in transaction mode.
    Transaction,
}

/// The name of a schema, safe to be written into a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schema(String);

impl Schema {
    pub(super) fn new(name: &str) -> Result<Self> {
        let is_fit = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let starts_well = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
        if starts_well && name.len() <= 48 && name.chars().all(is_fit) && !name.starts_with("pg_") {
            return Ok(Self(name.to_owned()));
        }
        Err(misconfigured(format!(
            "{name:?} cannot be the schema: use up to 48 lower-case letters, digits and underscores, not beginning with a \
             digit or with pg_"
        )))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// As a statement names it: it may be a word that SQL keeps for itself.
    pub(super) fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

impl Settings {
    /// Reads `postgres://…`: what libpq understands, and `schema`, `pooler` (`detect`, `none`, `transaction`), `sslmode`
    /// (`disable`, `prefer`, `require`, `verify-full`) and `sslrootcert` (a file, or `system`).
    pub(super) fn from_url(url: &str) -> Result<Self> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let mut schema = Schema("oncegate".to_owned());
        let mut pooler = Pooler::Detect;
        let (mut ssl_mode, mut root) = (None, None);
        let mut rest = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = form_urlencoded::parse(pair.as_bytes()).next() else { continue };
            match &*name {
                "schema" => schema = Schema::new(&value)?,
                "pooler" => pooler = pooler_of(&value)?,
                "sslmode" => ssl_mode = Some(value.into_owned()),
                "sslrootcert" => root = Some(value.into_owned()),
                _ => rest.push(pair),
            }
        }
        let address =
            if rest.is_empty() { address.to_owned() } else { format!("{address}?{}", rest.join("&")) };
        // The address may hold a password: say what is wrong with it, and not what it is.
        let config = Config::from_str(&address).map_err(|error| misconfigured(chain(&error)))?;
        let tls = Tls::new(ssl_mode.as_deref(), root.as_deref())?;
        let servers = one_each(&config, tls.mode());
        Ok(Self { servers, schema, pooler, tls, watermark: Watermark::default() })
    }
}

impl Settings {
    /// Whether a server on another machine is spoken to without TLS that proves who it is.
    pub(super) fn is_exposed(&self) -> bool {
        !self.tls.is_verified() && !self.servers.iter().all(is_local)
    }
}

fn is_local(server: &Config) -> bool {
    if let Some(address) = server.get_hostaddrs().first() {
        return address.is_loopback();
    }
    match server.get_hosts().first() {
        Some(Host::Tcp(host)) => {
            let is_loopback = |ip: IpAddr| ip.is_loopback();
            host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_loopback)
        }
        #[cfg(unix)]
        Some(Host::Unix(_)) => true,
        None => true,
    }
}

fn pooler_of(value: &str) -> Result<Pooler> {
    match value {
        "detect" => Ok(Pooler::Detect),
        "none" => Ok(Pooler::None),
        "transaction" => Ok(Pooler::Transaction),
        _ => Err(misconfigured(format!("pooler={value:?}: use detect, none or transaction"))),
    }
}

/// Each server on its own: one that accepts connections and then says nothing must not keep us from the next.
fn one_each(config: &Config, ssl_mode: SslMode) -> Vec<Config> {
    let count = config.get_hosts().len().max(config.get_hostaddrs().len()).max(1);
    let one = |n: usize| {
        let mut one = Config::new();
        match config.get_hosts().get(n) {
            Some(Host::Tcp(host)) => drop(one.host(host)),
            #[cfg(unix)]
            Some(Host::Unix(path)) => drop(one.host_path(path)),
            None if config.get_hostaddrs().is_empty() => drop(one.host("localhost")),
            None => {}
        }
        if let Some(address) = config.get_hostaddrs().get(n) {
            one.hostaddr(*address);
        }
        let port = config.get_ports().get(n).or_else(|| config.get_ports().first());
        one.port(port.copied().unwrap_or(5432));
        if let Some(user) = config.get_user() {
            one.user(user);
        }
        if let Some(password) = config.get_password() {
            one.password(password);
        }
        if let Some(dbname) = config.get_dbname() {
            one.dbname(dbname);
        }
        if let Some(options) = config.get_options() {
            one.options(options);
        }
        one.application_name(config.get_application_name().unwrap_or("oncegate"));
        one.connect_timeout(config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT));
        one.keepalives(config.get_keepalives());
        one.keepalives_idle(config.get_keepalives_idle().min(Duration::from_secs(15)));
        one.keepalives_interval(config.get_keepalives_interval().unwrap_or(Duration::from_secs(5)));
        one.keepalives_retries(config.get_keepalives_retries().unwrap_or(3));
        one.channel_binding(config.get_channel_binding());
        one.ssl_mode(ssl_mode);
        // Whatever the URL says: a server that does not take writes is of no use to anybody here.
        one.target_session_attrs(TargetSessionAttrs::ReadWrite);
        one
    };
    (0..count).map(one).collect()
}

pub(super) fn misconfigured(words: impl Into<String>) -> StoreError {
    StoreError::new(Kind::Misconfigured, Effect::None, "open").because(words.into())
}

/// An error and what lies beneath it, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut beneath = error.source();
    while let Some(cause) = beneath {
        let cause_words = cause.to_string();
        if !words.contains(&cause_words) {
            words = format!("{words}: {cause_words}");
        }
        beneath = cause.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> Settings {
        Settings::from_url(url).unwrap()
    }

    #[test]
    fn our_own_words_in_the_url_and_the_rest_for_the_driver() {
        let settings = settings(
            "postgres://me@a:1,b:2/db?schema=mine&target_session_attrs=read-write&pooler=transaction",
        );
        assert_eq!(settings.schema.as_str(), "mine");
        assert_eq!(settings.pooler, Pooler::Transaction);
        let ports: Vec<_> = settings.servers.iter().map(|server| server.get_ports()[0]).collect();
        assert_eq!(ports, [1, 2], "each server on its own, in order");
        for server in &settings.servers {
            assert_eq!(server.get_hosts().len(), 1);
            assert_eq!(server.get_dbname(), Some("db"));
            assert_eq!(server.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        }
    }

    #[test]
    fn a_server_that_takes_no_writes_is_never_enough() {
        let settings = settings("postgres://a/db?target_session_attrs=any");
        assert_eq!(settings.servers[0].get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
    }

    #[test]
    fn what_is_wrong_is_said_and_no_password_with_it() {
        let wrong = [
            ("postgres://u:sesame@h/db?schema=No-Good", "schema"),
            ("postgres://u:sesame@h/db?schema=pg_mine", "schema"),
            ("postgres://u:sesame@h/db?schema=a;drop", "schema"),
            ("postgres://u:sesame@h/db?pooler=session", "pooler"),
            ("postgres://u:sesame@h/db?sslmode=maybe", "sslmode"),
            ("postgres://u:sesame@h/db?connect_timeout=soon", "connect_timeout"),
            ("postgres://u:sesame@h/db?colour=red", "colour"),
            ("postgres://u:sesame@h:port/db", "port"),
        ];
        for (url, expected) in wrong {
            let error = Settings::from_url(url).unwrap_err();
            assert_eq!(error.kind(), Kind::Misconfigured);
            let words = error.to_string();
            assert!(words.contains(expected), "{url}: {words}");
            assert!(!words.contains("sesame"), "{words}");
            assert!(!format!("{error:?}").contains("sesame"));
        }
    }

    #[test]
    fn a_server_elsewhere_is_exposed_unless_it_must_prove_who_it_is() {
        for url in [
            "postgres://u@db.example/d",
            "postgres://u@10.0.0.7/d?sslmode=require",
            "postgres://u@localhost,db.example/d",
            "postgres://u@localhost/d?hostaddr=10.0.0.7",
            "postgres://u@db.example/d?sslmode=disable",
        ] {
            assert!(settings(url).is_exposed(), "{url}");
        }
        for url in [
            "postgres://u@localhost/d",
            "postgres://u@127.0.0.1,[::1]/d",
            "postgres:///d?host=/run/postgresql",
            "postgres://u@db.example/d?sslmode=verify-full",
        ] {
            assert!(!settings(url).is_exposed(), "{url}");
        }
    }

    #[test]
    fn a_password_is_not_in_what_is_printed() {
        let settings = settings("postgres://u:sesame@h/db");
        assert!(!format!("{settings:?}").contains("sesame"));
    }
}
