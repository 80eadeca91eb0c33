//! Floats as keys, and maps and floats that JSON has no words for.

use std::cmp::Ordering;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A float as a key of ordered sets, by `f64::total_cmp`.
#[derive(Debug, Clone, Copy, Default)]
pub struct SortKey(pub f64);

impl PartialEq for SortKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for SortKey {}
impl PartialOrd for SortKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for SortKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Serialize for SortKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        any_float::serialize(&self.0, serializer)
    }
}
impl<'de> Deserialize<'de> for SortKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        any_float::deserialize(deserializer).map(Self)
    }
}

/// Writes infinities as words.
pub mod any_float {
    use super::*;

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(f64),
        Word(String),
    }

    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        match value.is_finite() {
            true => serializer.serialize_f64(*value),
            false => serializer.collect_str(value),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        match Either::deserialize(deserializer)? {
            Either::Number(value) => Ok(value),
            Either::Word(word) => word.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// Writes a map as a list of pairs: JSON has no keys but strings.
pub mod pairs {
    use std::collections::BTreeMap;

    use super::*;

    pub fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Ok(Vec::<(K, V)>::deserialize(deserializer)?.into_iter().collect())
    }
}
