//! Which of an API's answers are kept, which free the key, and which leave it unknown: asked of `classify`, status by status.

use oncegate_core::classify::{Class, Ending, classify};
use oncegate_core::policy::Policy;

/// Statuses by what becomes of them, as a list for people; `None`: no status does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endings {
    pub(crate) kept: Option<String>,
    pub(crate) released: Option<String>,
    pub(crate) unknown: Option<String>,
}

impl Endings {
    pub(crate) fn of(policy: &Policy) -> Self {
        let class = |status| classify(policy, &Ending::Answered { status, outcome: None });
        Self {
            kept: listed(|status| matches!(class(status), Class::Complete)),
            released: listed(|status| matches!(class(status), Class::Release(_))),
            unknown: listed(|status| matches!(class(status), Class::Doubt(_))),
        }
    }
}

/// `2xx, 3xx, 4xx except 401, 403–405`: a hundred by its name where most of it belongs, single statuses where few do.
fn listed(belongs: impl Fn(u16) -> bool) -> Option<String> {
    let mut words = Vec::new();
    for hundred in 2..=5_u16 {
        let (inside, outside): (Vec<u16>, Vec<u16>) =
            (hundred * 100..=hundred * 100 + 99).partition(|status| belongs(*status));
        match (inside.len(), outside.len()) {
            (0, _) => {}
            (_, 0) => words.push(format!("{hundred}xx")),
            (most, few) if most > few => words.push(format!("{hundred}xx except {}", ranges(&outside))),
            _ => words.push(ranges(&inside)),
        }
    }
    (!words.is_empty()).then(|| words.join(", "))
}

/// `401, 413–415`
fn ranges(statuses: &[u16]) -> String {
    let mut words: Vec<String> = Vec::new();
    let runs = statuses.chunk_by(|one, next| *next == one + 1);
    for run in runs {
        match run {
            [one] => words.push(one.to_string()),
            [one, two] => words.extend([one.to_string(), two.to_string()]),
            [first, .., last] => words.push(format!("{first}–{last}")),
            [] => {}
        }
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_core::policy::Profile;

    #[test]
    fn statuses_by_profile() {
        let refusals = "401, 403, 405, 407, 408, 411, 413–415, 421, 425, 426, 428, 429, 431";
        let endings = |profile: Profile| {
            let Endings { kept, released, unknown } = Endings::of(&profile.policy());
            [kept, released, unknown].map(Option::unwrap_or_default)
        };
        assert_eq!(
            endings(Profile::Ietf),
            [
                format!("2xx, 3xx, 4xx except {refusals}"),
                format!("{refusals}, 5xx except 502, 504"),
                "502, 504".to_owned()
            ]
        );
        assert_eq!(
            endings(Profile::Stripe),
            [
                format!("2xx, 3xx, 4xx except {refusals}, 5xx except 501, 503, 505"),
                format!("{refusals}, 501, 503, 505"),
                String::new()
            ]
        );
        let refusals = refusals.replace("408, ", "");
        assert_eq!(endings(Profile::Payments)[1], format!("{refusals}, 501, 505"));
        assert_eq!(endings(Profile::Payments)[2], "408, 5xx except 501, 505");
        assert_eq!(endings(Profile::Lenient)[0], "2xx, 3xx");
    }
}
