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
    let Some(wrong) = wrong_with(path) else { return Ok(()) };
    let advice = match working_spelling(path) {
        Some(working) if path.ends_with('*') && working.ends_with("{*rest}") => {
            format!("; write {working:?} for every path below, or `{{name}}` for one segment")
        }
        Some(working) => format!("; write {working:?}"),
        None => String::new(),
    };
    Err(format!("{wrong}{advice} ({SYNTAX})"))
}

/// Characters that stand for something in the patterns of other routers.
const FOREIGN: [char; 12] = ['<', '>', '[', ']', '(', ')', '$', '+', '\\', '|', '^', '"'];

fn wrong_with(path: &str) -> Option<String> {
    if let Some(char) = path.chars().find(|char| char.is_whitespace() || char.is_control()) {
        return Some(format!(
            "a path has no white space and no control characters, and this one has {char:?}"
        ));
    }
    if path.contains("{{") || path.contains("}}") {
        return Some("doubled braces would match only literal braces".to_owned());
    }
    if ["%7B", "%7b", "%7D", "%7d"].iter().any(|brace| path.contains(brace)) {
        return Some("percent-encoded braces would match only themselves".to_owned());
    }
    path.split('/').find_map(wrong_segment)
}

fn wrong_segment(segment: &str) -> Option<String> {
    if let Some(name) = segment.strip_prefix(':') {
        return Some(format!("`:{name}` would match only itself"));
    }
    let mut name: Option<String> = None;
    for char in segment.chars() {
        match (char, &mut name) {
            ('{', None) => name = Some(String::new()),
            ('}', Some(complete)) => {
                let plain = complete.strip_prefix('*').unwrap_or(complete);
                let is_plain = |char: char| char.is_alphanumeric() || matches!(char, '_' | '-' | '.');
                if !plain.chars().all(is_plain) {
                    return Some(format!(
                        "`{{{complete}}}` has more than the name of a parameter in its braces"
                    ));
                }
                name = None;
            }
            (char, Some(name)) => name.push(char),
            ('*', None) => return Some("`*` would match only a literal star".to_owned()),
            ('?' | '#', None) => {
                return Some(format!("`{char}` is not part of a path; routes match by method and path only"));
            }
            (char, None) if FOREIGN.contains(&char) => {
                return Some(format!("`{char}` would match only itself; it means nothing in a pattern"));
            }
            _ => {}
        }
    }
    None
}

/// What the author of a pattern in another router's spelling probably meant. Only what can be used.
fn working_spelling(path: &str) -> Option<String> {
    if path.contains("//") {
        // Perhaps a URL, and a part of it a secret.
        return None;
    }
    let path: String = path.chars().filter(|char| !char.is_whitespace() && !char.is_control()).collect();
    let mut path = path.replace("{{", "{").replace("}}", "}");
    for (escape, brace) in [("%7B", "{"), ("%7b", "{"), ("%7D", "}"), ("%7d", "}")] {
        path = path.replace(escape, brace);
    }
    let braces = |text: &str| (text.matches('{').count(), text.matches('}').count());
    let is_query = |at: &usize| {
        let (opened, closed) = braces(&path[..*at]);
        opened == closed
    };
    let end = path.match_indices(['?', '#']).map(|(at, _)| at).find(is_query).unwrap_or(path.len());
    let path = &path[..end];
    let mut working: Vec<String> = Vec::new();
    let mut segments = path.split('/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        working.push(match segment {
            "*" | "**" if is_last => "{*rest}".to_owned(),
            _ if wrong_segment(segment).is_none() => segment.to_owned(),
            _ => {
                let before = segment.find(|char: char| !char.is_alphanumeric() && char != '-' && char != '_');
                let (before, rest) = segment.split_at(before.unwrap_or(segment.len()));
                let is_name = |char: char| char.is_alphanumeric() || char == '_';
                let name = rest.split(|char| !is_name(char)).find(|name| !name.is_empty()).unwrap_or("name");
                let is_taken = working.iter().any(|segment| segment.ends_with(&format!("{{{name}}}")));
                let number = if is_taken { working.len().to_string() } else { String::new() };
                format!("{before}{{{name}{number}}}")
            }
        });
    }
    let working = working.join("/");
    let is_usable = wrong_with(&working).is_none() && matchit::Router::new().insert(&working, ()).is_ok();
    is_usable.then_some(working)
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
        // A later release of the library may know more.
        _ => format!("the pattern cannot be used ({SYNTAX})"),
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
            ("POST /a/*", r#""/a/{*rest}" for every path below, or `{name}`"#),
            ("POST /a/**", r#""/a/{*rest}""#),
            ("POST /*", r#""/{*rest}""#),
            ("POST /a*", r#"write "/a{name}" ("#),
            ("POST /a/*/b", r#""/a/{name}/b""#),
            ("POST /a/*/b/*/c/*", r#""/a/{name}/b/{name4}/c/{*rest}""#),
            ("POST *", "a method, a space and a path"),
            ("POST /a/:id", r#""/a/{id}""#),
            ("POST /a/:id/b", r#""/a/{id}/b""#),
            ("POST /a?b=1", "method and path only"),
            ("POST /a/{*rest}/b", "only at the end"),
            ("POST /a/{}", "`{id}`"),
            ("POST /a/{id}{b}", "one parameter"),
            ("POST /a/{{*rest}}", r#""/a/{*rest}""#),
            ("POST /a/{{id}}", r#""/a/{id}""#),
            ("POST /a/{{id}}/b", r#""/a/{id}/b""#),
            ("POST /b ", r#"' '; write "/b""#),
            ("POST /b\t", r#""/b""#),
            ("POST /b\u{a0}/c", r#""/b/c""#),
            ("POST /b\u{7f}", r#""/b""#),
            ("POST  /b", "a method, a space and a path"),
            ("POST /a/<id>", r#""/a/{id}""#),
            ("POST /a/<int:id>/b", r#""/a/{int}/b""#),
            ("POST /a/[id]", r#""/a/{id}""#),
            ("POST /a/$id", r#""/a/{id}""#),
            ("POST /a/.+", r#""/a/{name}""#),
            ("POST /a/(.*)", r#"write "/a/{name}" ("#),
            ("POST /a/(.*)/b", r#""/a/{name}/b""#),
            ("POST ^/a$", "a method, a space and a path"),
            ("POST /a$", r#""/a{name}""#),
            ("POST /a|b", r#""/a{b}""#),
            ("POST /a\\b", r#""/a{b}""#),
            ("POST /a/%7Bid%7D", r#""/a/{id}""#),
            ("POST /a/%7bid%7d/b", r#""/a/{id}/b""#),
            ("POST /a/{id}*", r#""/a/{id}""#),
            ("POST /a/{id:int}", r#""/a/{id}""#),
            ("POST /a/{id:[0-9]+}", r#""/a/{id}""#),
            ("POST /a/{id?}", r#""/a/{id}""#),
            ("POST /a/{*}", "`{id}`"),
        ] {
            let error = error(&[pattern]);
            let shown = format!("{pattern:?}");
            assert!(error.contains(named) && error.contains(&shown), "{pattern}: {error}");
            // What is advised can be used.
            let advised = error.split("write \"").nth(1).map(|rest| rest.split('"').next().unwrap());
            let advised = advised.map(|path| Routes::none().route(&format!("POST {path}"), Profile::Ietf));
            assert!(advised.is_none_or(|routes| routes.is_ok()), "{pattern}: {error}");
            for words_of_the_library in ["Insertion", "insertion", "Parameters must", "catch-all"] {
                assert!(!error.contains(words_of_the_library), "{pattern}: {error}");
            }
        }
        let routes = Routes::none().route("POST /a/{*rest}", Profile::Ietf).unwrap();
        let routes = routes.route("POST /things/{id}:cancel-not-a-parameter", Profile::Ietf);
        assert!(routes.is_err(), "a parameter is the end of its segment");
        let routes = Routes::none().route("POST /v1/things:cancel", Profile::Ietf).unwrap();
        assert!(routes.of(&http::Method::POST, "/v1/things:cancel").is_some());
        for pattern in
            ["POST /v1/{order_id}", "POST /v1.2/a-b_c~d/{order-id}", "POST /a@b/c=d;e,f&g!h'i", "POST /%20"]
        {
            assert!(Routes::none().route(pattern, Profile::Ietf).is_ok(), "{pattern}");
        }
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
