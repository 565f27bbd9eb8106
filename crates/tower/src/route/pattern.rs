//! Path patterns: what may be written, and what is said about the rest.
//!
//! A pattern that means something else than its author thought leaves a route unprotected, so
//! the spellings of other routers are refused instead of being taken literally.

use matchit::InsertError;

/// The syntax, for error messages.
const SYNTAX: &str = "`{name}` matches one segment, `{*name}` at the end matches the rest of the path, \
                      everything else matches itself";

/// What is wrong with the path of a pattern, and what to write instead.
pub(super) fn check(path: &str) -> Result<(), String> {
    let mut is_outside = true;
    for (at, char) in path.char_indices() {
        match char {
            '{' => is_outside = false,
            '}' => is_outside = true,
            '*' if is_outside => {
                let rest = format!("{}{{*rest}}", &path[..at]);
                return Err(format!(
                    "`*` would match only a literal star; write {rest:?} for every path below, or \
                     `{{name}}` for one segment ({SYNTAX})"
                ));
            }
            ':' if is_outside && path[..at].ends_with('/') => {
                let name = path[at + 1..].split('/').next().unwrap_or_default();
                return Err(format!(
                    "`:{name}` would match only itself; write `{{{name}}}` for one segment ({SYNTAX})"
                ));
            }
            '?' | '#' if is_outside => {
                return Err(format!("`{char}` is not part of a path; routes match by method and path only"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Why a pattern cannot be added, in words about routes.
pub(super) fn refused(method: &str, error: &InsertError) -> String {
    match error {
        InsertError::Conflict { with } => format!(
            "conflicts with the route \"{method} {with}\": a request could match both, and neither is \
             narrower; drop one of them, or use the same parameter in both places"
        ),
        InsertError::InvalidParamSegment => {
            format!("a segment may have one parameter, at its end ({SYNTAX})")
        }
        InsertError::InvalidParam => {
            format!("a parameter needs a name in braces, such as `{{id}}` ({SYNTAX})")
        }
        InsertError::InvalidCatchAll => {
            format!("`{{*name}}` may stand only at the end of a path ({SYNTAX})")
        }
        other => format!("the pattern cannot be used ({other}; {SYNTAX})"),
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::policy::Profile;

    use crate::Routes;

    fn error(patterns: &[&str]) -> String {
        let mut routes = Routes::none();
        for pattern in patterns {
            match routes.route(pattern, Profile::Ietf) {
                Ok(more) => routes = more,
                Err(error) => return error.to_string(),
            }
        }
        panic!("accepted: {patterns:?}");
    }

    /// `POST /a/*` was taken literally, so that everything below `/a/` passed unprotected.
    #[test]
    fn spellings_of_other_routers_are_refused_with_the_working_one() {
        for (pattern, named) in [
            ("POST /a/*", r#""/a/{*rest}""#),
            ("POST /a/**", r#""/a/{*rest}""#),
            ("POST /*", r#""/{*rest}""#),
            ("POST /a*", r#""/a{*rest}""#),
            ("POST /a/*/b", "`{name}` for one segment"),
            ("POST *", "a method, a space and a path"),
            ("POST /a/:id", "`{id}`"),
            ("POST /a/:id/b", "`{id}`"),
            ("POST /a?b=1", "method and path only"),
            ("POST /a/{*rest}/b", "only at the end"),
            ("POST /a/{}", "`{id}`"),
            ("POST /a/{id}{b}", "one parameter"),
        ] {
            let error = error(&[pattern]);
            assert!(error.contains(named) && error.contains(pattern), "{pattern}: {error}");
        }
        let routes = Routes::none().route("POST /a/{*rest}", Profile::Ietf).unwrap();
        let routes = routes.route("POST /things/{id}:cancel-not-a-parameter", Profile::Ietf);
        assert!(routes.is_err(), "a parameter is the end of its segment");
        let routes = Routes::none().route("POST /v1/things:cancel", Profile::Ietf).unwrap();
        assert!(routes.of(&http::Method::POST, "/v1/things:cancel").is_some());
    }

    /// Each is a valid name of a method, which no request has.
    #[test]
    fn methods_that_no_request_has_are_refused() {
        for method in ["*", "ANY*", "POST|PATCH", "post", "Post"] {
            let error = error(&[&format!("{method} /x")]);
            assert!(error.contains(method) && error.contains("a route for each"), "{method}: {error}");
        }
        assert!(Routes::none().route("M-SEARCH /x", Profile::Ietf).is_ok());
    }

    #[test]
    fn conflicts_name_the_other_route() {
        let error = error(&["POST /orders/{id}", "POST /orders/{order}"]);
        assert_eq!(
            error,
            "\"POST /orders/{order}\": conflicts with the route \"POST /orders/{id}\": a request could \
             match both, and neither is narrower; drop one of them, or use the same parameter in both places"
        );
    }
}
