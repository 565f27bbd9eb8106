//! What can go wrong at a provider.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One of the ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Answers late.
    Slow,
    /// Charges nothing, and never answers.
    TimeoutBeforeCharge,
    /// Charges, and never answers.
    TimeoutAfterCharge,
    /// Closes the connection, and charges nothing.
    ResetBeforeCharge,
    /// Charges, and closes the connection.
    ResetAfterCharge,
    /// Closes the connection, and charges later.
    LateCharge,
    /// 402.
    Decline,
    /// 500, nothing charged.
    ErrorBeforeCharge,
    /// 500, charged.
    ErrorAfterCharge,
    /// The webhook is not sent.
    WebhookLost,
    /// The webhook is sent late.
    WebhookLate,
    /// The webhook is sent twice.
    WebhookTwice,
    /// A webhook says that the charge failed, before anything is charged; what becomes of it is told after that, as always.
    WebhookFailedFirst,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Slow,
        Self::TimeoutBeforeCharge,
        Self::TimeoutAfterCharge,
        Self::ResetBeforeCharge,
        Self::ResetAfterCharge,
        Self::LateCharge,
        Self::Decline,
        Self::ErrorBeforeCharge,
        Self::ErrorAfterCharge,
        Self::WebhookLost,
        Self::WebhookLate,
        Self::WebhookTwice,
        Self::WebhookFailedFirst,
    ];

    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::TimeoutBeforeCharge => "timeout-before-charge",
            Self::TimeoutAfterCharge => "timeout-after-charge",
            Self::ResetBeforeCharge => "reset-before-charge",
            Self::ResetAfterCharge => "reset-after-charge",
            Self::LateCharge => "late-charge",
            Self::Decline => "decline",
            Self::ErrorBeforeCharge => "error-before-charge",
            Self::ErrorAfterCharge => "error-after-charge",
            Self::WebhookLost => "webhook-lost",
            Self::WebhookLate => "webhook-late",
            Self::WebhookTwice => "webhook-twice",
            Self::WebhookFailedFirst => "webhook-failed-first",
        }
    }

    /// Whether it is about the webhook, and so may stand beside another.
    #[must_use]
    pub const fn is_of_webhook(self) -> bool {
        matches!(self, Self::WebhookLost | Self::WebhookLate | Self::WebhookTwice | Self::WebhookFailedFirst)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|fault| fault.name() == name);
        found.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|fault| fault.name()).collect();
            format!("there is no fault {name:?}; there are {}", names.join(", "))
        })
    }
}

/// How often what goes wrong by itself: probabilities from 0 to 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Faults(pub BTreeMap<Fault, f64>);

impl Faults {
    /// What goes wrong this time: at most one fault of the charge, and one of its webhook.
    pub(super) fn roll(&self, dice: &mut fastrand::Rng) -> Vec<Fault> {
        let mut rolled = Vec::new();
        for of_webhook in [false, true] {
            let mut point = dice.f64();
            for (fault, probability) in self.0.iter().filter(|(fault, _)| fault.is_of_webhook() == of_webhook)
            {
                if point < *probability {
                    rolled.push(*fault);
                    break;
                }
                point -= probability;
            }
        }
        rolled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for fault in Fault::ALL {
            assert_eq!(fault.name().parse(), Ok(fault));
            assert_eq!(serde_json::to_value(fault).unwrap(), fault.name());
        }
        assert!("earthquake".parse::<Fault>().unwrap_err().contains("late-charge"));
    }

    #[test]
    fn dice_fall_as_often_as_they_should() {
        let faults = Faults([(Fault::Decline, 0.25), (Fault::Slow, 0.25), (Fault::WebhookLost, 0.5)].into());
        let mut dice = fastrand::Rng::with_seed(7);
        let mut seen = BTreeMap::<Fault, u32>::new();
        for _ in 0..10_000 {
            let rolled = faults.roll(&mut dice);
            assert!(rolled.iter().filter(|fault| !fault.is_of_webhook()).count() <= 1);
            for fault in rolled {
                *seen.entry(fault).or_default() += 1;
            }
        }
        for (fault, expected) in [(Fault::Decline, 2_500), (Fault::Slow, 2_500), (Fault::WebhookLost, 5_000)]
        {
            assert!(seen[&fault].abs_diff(expected) < 300, "{fault}: {}", seen[&fault]);
        }
    }
}
