//! Values of a configuration that are not plain numbers or names. Each is read from the text that it shows, which is
//! also how it stands in JSON.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::Metric;
use crate::links::metric::LinkMetric;
use crate::named::named;
use crate::partition::Method;
use crate::sample::Fanout;
use crate::update::Updates;

/// Examples per step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// All of them, with all neighbours.
    Full,
    Of(usize),
}

impl Batch {
    /// The number of examples; `None` for all.
    pub fn size(self) -> Option<usize> {
        match self {
            Self::Full => None,
            Self::Of(size) => Some(size),
        }
    }
}

/// How many steps the server takes in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepCount {
    /// As many as the server's budget pays for, as long as they help.
    #[default]
    Auto,
    Fixed(u32),
    /// As many as a run of `llcg` took, round by round; the caller gives them.
    Like,
}

/// How a graph is cut for training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionBy {
    /// By the first method that makes parts alike enough; probes tell.
    Auto,
    Method(Method),
}

/// How classes count in the loss.
#[derive(Clone, Debug, PartialEq)]
pub enum ClassWeights {
    /// Every class alike.
    Balanced,
    Given(Vec<f32>),
}

/// A score of labels or of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricName {
    Nodes(Metric),
    Links(LinkMetric),
}

named! {
    /// What is learnt.
    pub enum TaskName("task") {
        Nodes = "nodes",
        Links = "links",
    }
}

fn numbers<T: FromStr>(text: &str) -> Option<Vec<T>> {
    text.split(',').map(|number| number.trim().parse().ok()).collect()
}

impl FromStr for Batch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "full" => Ok(Self::Full),
            Ok(size @ 1..=16_777_216) => Ok(Self::Of(size)),
            _ => Err("expected a number from 1 to 16777216, or `full`".into()),
        }
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("full"),
            Self::Of(size) => write!(f, "{size}"),
        }
    }
}

impl FromStr for Fanout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = numbers::<usize>(text).unwrap_or_default();
        match numbers[..] {
            _ if text == "all" => Ok(Self::All),
            [] => Err(()),
            _ if numbers.iter().any(|most| !(1..=1_000_000).contains(most)) => Err(()),
            [most] => Ok(Self::AtMost(most)),
            _ => Ok(Self::PerHop(numbers)),
        }
        .map_err(|()| "expected numbers from 1 to 1000000 separated by commas, or `all`".into())
    }
}

impl fmt::Display for Fanout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::AtMost(most) => write!(f, "{most}"),
            Self::PerHop(most) => {
                f.write_str(&most.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
            }
        }
    }
}

impl FromStr for StepCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "auto" => Ok(Self::Auto),
            _ if text == "as llcg" => Ok(Self::Like),
            Ok(steps @ 0..=1_000_000) => Ok(Self::Fixed(steps)),
            _ => Err("expected a number from 0 to 1000000, or `auto`".into()),
        }
    }
}

impl fmt::Display for StepCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(steps) => write!(f, "{steps}"),
            Self::Like => f.write_str("as llcg"),
        }
    }
}

impl FromStr for PartitionBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => {
                text.parse().map(Self::Method).map_err(|error: String| format!("{error}; or auto"))
            }
        }
    }
}

impl fmt::Display for PartitionBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Method(method) => f.write_str(method.name()),
        }
    }
}

impl FromStr for ClassWeights {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_weight = |weight: &f32| (0.0..=1e6).contains(weight);
        match numbers::<f32>(text) {
            _ if text == "balanced" => Ok(Self::Balanced),
            Some(weights) if weights.iter().all(is_weight) => Ok(Self::Given(weights)),
            _ => {
                Err("expected `balanced`, or numbers from 0 to 1000000 separated by commas".into())
            }
        }
    }
}

impl fmt::Display for ClassWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Balanced => f.write_str("balanced"),
            Self::Given(weights) => {
                f.write_str(&weights.iter().map(f32::to_string).collect::<Vec<_>>().join(","))
            }
        }
    }
}

impl FromStr for MetricName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        name.parse().map(Self::Nodes).or_else(|_| {
            name.parse().map(Self::Links).map_err(|of_links: String| {
                let of_nodes = Metric::ALL.map(Metric::name).join(", ");
                format!("{of_links}; or, for labels, {of_nodes}")
            })
        })
    }
}

impl fmt::Display for MetricName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes(metric) => f.write_str(metric.name()),
            Self::Links(metric) => metric.fmt(f),
        }
    }
}

/// A value as its text, or as a number where the text is one.
fn write<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    let text = value.to_string();
    match text.parse() {
        Ok(number) => serializer.serialize_u64(number),
        Err(_) => serializer.serialize_str(&text),
    }
}

fn read<'de, T: FromStr<Err = String>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let text = match Value::deserialize(from)? {
        Value::String(text) => text,
        other => other.to_string(),
    };
    text.parse().map_err(D::Error::custom)
}

macro_rules! as_text {
    ($($name:ty),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                write(self, serializer)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                read(from)
            }
        }
    )*};
}

as_text!(Batch, Fanout, StepCount, PartitionBy, ClassWeights, MetricName, Updates);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_read_from_what_it_shows() {
        fn check<T>(texts: &[&str])
        where
            T: FromStr<Err = String> + fmt::Display + Serialize + for<'a> Deserialize<'a>,
        {
            for text in texts {
                let value: T = text.parse().expect("a value");
                assert_eq!(value.to_string(), *text);
                let json = serde_json::to_string(&value).expect("JSON");
                let again: T = serde_json::from_str(&json).expect("a value");
                assert_eq!(again.to_string(), *text, "{json}");
            }
        }
        check::<Batch>(&["full", "64"]);
        check::<Fanout>(&["all", "10", "15,10,5"]);
        check::<StepCount>(&["auto", "0", "7", "as llcg"]);
        check::<PartitionBy>(&["auto", "metis-even"]);
        check::<ClassWeights>(&["balanced", "1,2.5"]);
        check::<MetricName>(&["accuracy", "recall@20", "mrr"]);
        check::<Updates>(&["fp32", "bf16", "top-k:0.1"]);
        assert!("0".parse::<Batch>().is_err() && "5,0".parse::<Fanout>().is_err());
    }
}
