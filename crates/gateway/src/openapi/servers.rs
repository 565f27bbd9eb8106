//! What a document's servers put before its paths.

use super::json::{Node, Object};

/// The path of each server's URL, without a slash at its end, each once; `None`: there is no list, or an empty one.
pub(super) fn bases(servers: Option<&Node>) -> Option<Vec<String>> {
    let Some(Node::List(servers)) = servers else { return None };
    let mut bases = Vec::new();
    for server in servers {
        let Node::Object(server) = server else { continue };
        let Some(Node::Text(url)) = server.get("url") else { continue };
        let base = path_of(&with_variables(url, server));
        if !bases.contains(&base) {
            bases.push(base);
        }
    }
    (!bases.is_empty()).then_some(bases)
}

/// `{version}` is its default.
fn with_variables(url: &str, server: &Object) -> String {
    let mut url = url.to_owned();
    if let Some(Node::Object(variables)) = server.get("variables") {
        for (name, variable) in variables.iter() {
            if let Node::Object(variable) = variable
                && let Some(Node::Text(default)) = variable.get("default")
            {
                url = url.replace(&format!("{{{name}}}"), default);
            }
        }
    }
    url
}

fn path_of(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let path = match url.split_once("//") {
        // With a host, or with a scheme too.
        Some((before, after)) if before.is_empty() || before.ends_with(':') => {
            after.find('/').map_or("", |start| &after[start..])
        }
        _ => url,
    };
    let path = path.trim_matches('/');
    // `.` is where the document lies, which nobody knows here.
    if path.is_empty() || path == "." { String::new() } else { format!("/{path}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_servers_url() {
        let table = [
            ("https://api.example.com", ""),
            ("https://api.example.com/", ""),
            ("https://api.example.com/v1", "/v1"),
            ("https://api.example.com/v1/", "/v1"),
            ("//api.example.com/v1", "/v1"),
            ("/v1", "/v1"),
            ("v1", "/v1"),
            ("/", ""),
            (".", ""),
            ("https://api.example.com/a/b?x=1#y", "/a/b"),
        ];
        for (url, path) in table {
            assert_eq!(path_of(url), path, "{url}");
        }
    }
}
