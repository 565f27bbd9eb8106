//! The servers that all tests of a run share: whoever needs just some PostgreSQL or some Redis takes a schema or a prefix there.
//!
//! Never skipped: a test that finds no server fails and says what to do.

/// Where the shared PostgreSQL is.
pub const POSTGRES_URL: &str = "ONCEGATE_TEST_POSTGRES_URL";
/// Where the shared Redis is.
pub const REDIS_URL: &str = "ONCEGATE_TEST_REDIS_URL";

/// The shared PostgreSQL's URL.
#[must_use]
pub fn postgres_url() -> String {
    url(POSTGRES_URL, "PostgreSQL")
}

/// The shared Redis's URL.
#[must_use]
pub fn redis_url() -> String {
    url(REDIS_URL, "Redis")
}

fn url(variable: &str, server: &str) -> String {
    std::env::var(variable).ok().filter(|url| !url.is_empty()).unwrap_or_else(|| {
        panic!(
            "this test needs a {server}, and {variable} does not say where one is. \
             `cargo xtask test` starts one by itself and sets it; \
             to use one of yours, set {variable} to its URL"
        )
    })
}

#[cfg(test)]
mod tests {
    #[test]
    #[should_panic(
        expected = "ONCEGATE_TEST_NOWHERE_URL does not say where one is. `cargo xtask test` starts one"
    )]
    fn a_missing_server_fails_the_test_and_says_what_to_do() {
        let _url = super::url("ONCEGATE_TEST_NOWHERE_URL", "Nowhere");
    }
}
