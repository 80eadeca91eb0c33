//! A plan: how a model's tables lie in memory and are read on one machine.
//!
//! Four levers, each of which can be moved by hand in `plan.toml`: how many threads look up at
//! once, what is fetched ahead, whether the hottest rows lie together, and on which pages.

pub mod advice;
pub mod expect;
mod file;
pub mod levers;
pub mod make;
pub mod measure;
mod timer;

pub use file::{HOT_FILE, PLAN_FILE};
use hither_kernels::bag::prefetch::Prefetch;
use hither_kernels::gemm::Precision;
use serde::{Deserialize, Serialize};

use crate::model::Spec;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The model's name, so that a plan is not used for another.
    pub model: String,
    /// 0 for all cores.
    pub threads: usize,
    #[serde(with = "PrecisionName")]
    pub mlp: Precision,
    #[serde(rename = "table")]
    pub tables: Vec<TablePlan>,
    /// For each table the rows that may be packed, hottest first. In a file of their own.
    #[serde(skip)]
    pub hot: Vec<Vec<u32>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TablePlan {
    pub name: String,
    pub pages: PageChoice,
    #[serde(with = "text")]
    pub prefetch: Prefetch,
    pub packing: Packing,
    /// How many of the hottest rows are packed.
    pub hot_rows: usize,
}

/// Where a table is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PageChoice {
    /// The mapped file: no copy.
    Mapped,
    /// A copy on pages of 4 KiB.
    Small,
    /// A copy on huge pages.
    Huge,
}

/// Whether the hottest rows lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Packing {
    Off,
    /// Copies of them, found by a map at each lookup: ids stay as they are.
    Lookup,
    /// The table itself is stored hottest first. Costs nothing at lookup, but clients must send the
    /// new numbers of the rows.
    Ids,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Precision")]
enum PrecisionName {
    #[serde(rename = "fp32")]
    F32,
    #[serde(rename = "bf16")]
    Bf16,
}

/// Values that are written as they are shown.
mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub fn deserialize<'de, D: Deserializer<'de>, T>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
    {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

impl Plan {
    /// A default for use without measurements: huge pages, rows fetched far ahead, nothing packed.
    pub fn standard(spec: &Spec) -> Self {
        let table = |name: &String| TablePlan {
            name: name.clone(),
            pages: PageChoice::Huge,
            prefetch: Prefetch::default(),
            packing: Packing::Off,
            hot_rows: 0,
        };
        Self {
            model: spec.name.clone(),
            threads: 0,
            mlp: Precision::F32,
            tables: spec.tables.iter().map(|t| table(&t.name)).collect(),
            hot: vec![Vec::new(); spec.tables.len()],
        }
    }

    /// All levers off: the tables as the file has them.
    pub fn nothing(spec: &Spec) -> Self {
        let mut plan = Self::standard(spec);
        for table in &mut plan.tables {
            table.pages = PageChoice::Mapped;
            table.prefetch = Prefetch::Off;
        }
        plan
    }
}
