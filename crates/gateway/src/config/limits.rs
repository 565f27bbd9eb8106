//! `[limits]`, and of `[listen]` what bounds clients' bodies: defaults, checks, and what reopens
//! a hole.

use std::ops::Range;
use std::time::Duration;

use toml::Spanned;

use super::check::{Source, positive};
use super::error::ConfigError;
use super::file::{self, File};
use super::show::shown;
use super::word::Span;
use super::{Config, Limits, Listen};

/// How long a body may stand still, or be slower than the minimum rate.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a body may take in all.
pub(super) const BODY_DEADLINE: Duration = Duration::from_mins(30);
/// Bytes per second; what Kestrel asks for, too.
pub(super) const BODY_RATE_MIN: u64 = 240;
/// Of one address, unless a quarter of what there is for all is less.
const PER_PEER_MAX: usize = 1024;
/// No default takes fewer requests of one address, where `executions_max` is small.
const PER_PEER_MIN: usize = 64;

pub(super) fn limits(
    typed: &file::Limits,
    listen: &Listen,
    source: &Source<'_>,
) -> Result<Limits, ConfigError> {
    let requests_max = positive(typed.requests_max.as_ref(), 4096, source)?;
    let quarter = |max: usize| PER_PEER_MAX.min(max / 4).max(1);
    let connections = quarter(listen.connections_max);
    let executions_max = positive(typed.executions_max.as_ref(), 1024, source)?;
    // Each of them may be at a slow upstream.
    let requests = quarter(requests_max).min(PER_PEER_MIN.max(executions_max / 2));
    let exempt = typed.per_peer_exempt.as_ref();
    Ok(Limits {
        requests_max,
        executions_max,
        queue_max: typed.queue_max.as_ref().map_or(1024, |max| max.get_ref().0),
        queue_timeout: typed.queue_timeout.map_or(Duration::from_secs(5), |span| span.0),
        per_peer_connections_max: positive(typed.per_peer_connections_max.as_ref(), connections, source)?,
        per_peer_requests_max: positive(typed.per_peer_requests_max.as_ref(), requests, source)?,
        per_peer_exempt: exempt.map(|peers| peers.get_ref().iter().map(|peer| peer.0).collect()),
    })
}

/// A span of time that is not nothing.
pub(super) fn span(
    typed: Option<&Spanned<Span>>,
    default: Duration,
    source: &Source<'_>,
) -> Result<Duration, ConfigError> {
    match typed {
        Some(span) if span.get_ref().0.is_zero() => {
            Err(source.error(&span.span(), "must be greater than zero"))
        }
        Some(span) => Ok(span.get_ref().0),
        None => Ok(default),
    }
}

/// Settings by which one client could block all others, with the remedy.
pub(super) fn warnings(config: &Config, file: &File) -> Vec<(Range<usize>, String)> {
    // Above these, one slow client holds a place for too long.
    const TIMEOUT_MAX: Duration = Duration::from_mins(5);
    const DEADLINE_MAX: Duration = Duration::from_hours(2);
    const TUNNEL_MAX: Duration = Duration::from_hours(24);
    const IDLE_MAX: Duration = Duration::from_hours(1);
    // A higher minimum rate shuts out clients on slow networks.
    const RATE_MAX: u64 = 64 << 10;

    let (listen, limits) = (&config.listen, &config.limits);
    let mut warnings = Vec::new();
    if let Some(typed) = file.listen.header_timeout.as_ref().filter(|_| listen.header_timeout > TIMEOUT_MAX) {
        let words = format!(
            "listen.header_timeout = \"{}\": a client that sends no whole head holds a connection for so long; set {} or less",
            shown(listen.header_timeout),
            shown(TIMEOUT_MAX)
        );
        warnings.push((typed.span(), words));
    }
    if let Some(typed) = file.listen.idle_timeout.as_ref().filter(|_| listen.idle_timeout > IDLE_MAX) {
        let words = format!(
            "listen.idle_timeout = \"{}\": a client that asks for nothing more holds a connection for so long; set {} or less",
            shown(listen.idle_timeout),
            shown(IDLE_MAX)
        );
        warnings.push((typed.span(), words));
    }
    let tunnel = file.listen.tunnel_idle_timeout.as_ref();
    if let Some(typed) = tunnel.filter(|_| listen.tunnel_idle_timeout > TUNNEL_MAX) {
        let words = format!(
            "listen.tunnel_idle_timeout = \"{}\": a WebSocket whose client is gone holds two connections for so long; set {} or less",
            shown(listen.tunnel_idle_timeout),
            shown(TUNNEL_MAX)
        );
        warnings.push((typed.span(), words));
    }
    if let Some(typed) = file.listen.body_timeout.as_ref().filter(|_| listen.body_timeout > TIMEOUT_MAX) {
        let words = format!(
            "listen.body_timeout = \"{}\": a client may send nothing for so long and hold its place; say {} or less",
            shown(listen.body_timeout),
            shown(TIMEOUT_MAX)
        );
        warnings.push((typed.span(), words));
    }
    if let Some(typed) = file.listen.body_deadline.as_ref().filter(|_| listen.body_deadline > DEADLINE_MAX) {
        let words = format!(
            "listen.body_deadline = \"{}\": a client may hold a place for so long with one slow body; say {} or less",
            shown(listen.body_deadline),
            shown(DEADLINE_MAX)
        );
        warnings.push((typed.span(), words));
    }
    if let Some(typed) = &file.listen.body_rate_min {
        let words = match listen.body_rate_min {
            0 => format!(
                "listen.body_rate_min = 0: a client that sends a byte before every body_timeout holds its place \
                 until body_deadline; drop the setting, or say {BODY_RATE_MIN}"
            ),
            rate if rate > RATE_MAX => format!(
                "listen.body_rate_min = {rate}: clients on slow networks cannot send anything larger than what they \
                 send within body_timeout; say {RATE_MAX} or less"
            ),
            _ => String::new(),
        };
        if !words.is_empty() {
            warnings.push((typed.span(), words));
        }
    }
    let requests = ("limits.requests_max", limits.requests_max);
    let executions = ("limits.executions_max", limits.executions_max);
    let per_peer = [
        (
            &file.limits.per_peer_connections_max,
            ("per_peer_connections_max", limits.per_peer_connections_max),
            ("listen.connections_max", listen.connections_max),
        ),
        (
            &file.limits.per_peer_requests_max,
            ("per_peer_requests_max", limits.per_peer_requests_max),
            // Each request may be at a slow upstream.
            if executions.1 < requests.1 { executions } else { requests },
        ),
    ];
    for (typed, (name, max), (of_all, all)) in per_peer {
        if let Some(typed) = typed.as_ref().filter(|_| max > all.div_ceil(2)) {
            let words = format!(
                "limits.{name} = {max}: one address can take more than half of {of_all} ({all}); say {} or less, and \
                 name proxies in front in limits.per_peer_exempt",
                all.div_ceil(2)
            );
            warnings.push((typed.span(), words));
        }
    }
    if let Some(typed) = &file.limits.per_peer_exempt
        && let Some(file::Peer(net)) = typed.get_ref().iter().find(|peer| peer.is_wide())
    {
        let words = format!(
            "limits.per_peer_exempt contains {net}: no limit holds for any of these addresses, so that one client \
             can block all others; name only the proxies in front"
        );
        warnings.push((typed.span(), words));
    }
    warnings
}
