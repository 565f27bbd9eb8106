//! Secrets that stand elsewhere: `env:NAME` names a variable, `file:PATH` and the keys that end in
//! `_file` a file. So passwords stay out of the configuration and out of lists of processes.

use std::ops::Range;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::Given;
use super::check::Source;
use super::file::File;
use super::reconcile::Environment;
use super::show::without_secrets;
use super::word::Secret;

/// The URL of a store: as it stands, or what `env:NAME` or `file:PATH` holds.
pub fn store_url(text: &str, environment: &Environment) -> Result<Secret, String> {
    named(text, environment, Path::to_owned)
}

/// The same in the file, where paths are relative to its folder.
pub(super) fn in_file(text: &Secret, source: &Source<'_>) -> Result<Secret, String> {
    named(text.expose(), source.environment, |path| source.file(path))
}

fn named(text: &str, environment: &Environment, locate: impl Fn(&Path) -> PathBuf) -> Result<Secret, String> {
    if let Some(name) = text.strip_prefix("env:") {
        return environment.secret(name);
    }
    match text.strip_prefix("file:") {
        Some(path) => read(&locate(Path::new(path))),
        None => Ok(Secret::new(text)),
    }
}

/// What a file holds, without the white space around it.
pub(super) fn read(path: &Path) -> Result<Secret, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("{} could not be read: {error}", path.display()))?;
    match text.trim() {
        "" => Err(format!("{} is empty; expected the secret", path.display())),
        secret => Ok(Secret::new(secret)),
    }
}

/// Files of secrets that other users may read.
pub(super) fn warnings(file: &File, given: &Given, source: &Source<'_>) -> Vec<String> {
    let of_path = |key, path: &Option<Spanned<PathBuf>>| {
        path.as_ref().map(|path| (key, source.file(path.get_ref()), Some(path.span())))
    };
    let of_url = |key, url: &Option<Spanned<Secret>>| {
        let url = url.as_ref()?;
        let path = url.get_ref().expose().strip_prefix("file:")?;
        Some((key, source.file(Path::new(path)), Some(url.span())))
    };
    let by_flag = given.store.as_ref().and_then(|url| url.expose().strip_prefix("file:"));
    let files = [
        of_path("listen.tls_key", &file.listen.tls_key),
        of_path("admin.tls_key", &file.admin.tls_key),
        of_path("admin.token_file", &file.admin.token_file).filter(|_| given.admin_token.is_none()),
        of_path("store.url_file", &file.store.url_file).filter(|_| given.store.is_none()),
        of_url("store.url", &file.store.url).filter(|_| given.store.is_none()),
        of_url("store.shared_cache", &file.store.shared_cache),
        by_flag.map(|path| ("--store", PathBuf::from(path), None)),
    ];
    let warned = files.into_iter().flatten().filter_map(|(key, path, span)| {
        // What is not there is an error elsewhere.
        let mode = std::fs::metadata(&path).ok()?.permissions().mode() & 0o777;
        (mode & 0o077 != 0).then(|| {
            let (line, path) = (source.line(span), path.display());
            format!("{line}{key}: {path} has mode {mode:04o}, so that other users may read the secret; chmod 600 {path}")
        })
    });
    let mut warned: Vec<_> = warned.collect();
    let mode =
        source.path.and_then(|path| Some((path, std::fs::metadata(path).ok()?.permissions().mode() & 0o777)));
    if let Some((path, mode)) = mode.filter(|(_, mode)| mode & 0o077 != 0)
        && let Some((key, span)) = secret_in(file)
    {
        let (line, path) = (source.line(Some(span)), path.display());
        warned.push(format!(
            "{line}{key}: a secret, in a file with mode {mode:04o} that other users may read; chmod 600 {path}, or \
             name a variable or a file in its place"
        ));
    }
    warned
}

/// The first secret that stands in the configuration itself.
fn secret_in(file: &File) -> Option<(&'static str, Range<usize>)> {
    let with_password = |url: &&Spanned<Secret>| {
        let url = url.get_ref().expose();
        without_secrets(url) != url
    };
    let token = file.admin.token.as_ref().map(|token| ("admin.token", token.span()));
    let url = file.store.url.as_ref().filter(with_password).map(|url| ("store.url", url.span()));
    let cache = file.store.shared_cache.as_ref().filter(with_password);
    token.or(url).or(cache.map(|url| ("store.shared_cache", url.span())))
}
