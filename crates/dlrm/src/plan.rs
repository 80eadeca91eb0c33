//! A plan: how a model's tables lie in memory and are read on one machine.
//!
//! Four levers, each of which can be moved by hand in `plan.toml`: how many threads look up at
//! once, what is fetched ahead, whether the hottest rows lie together, and on which pages.

pub mod advice;
pub mod cache;
mod crew;
pub mod effects;
mod file;
pub mod gpu;
pub mod layouts;
pub mod levers;
pub mod make;
pub mod measure;
mod self_test;
pub mod timer;

pub use file::PLAN_FILE;
use hither_kernels::bag::prefetch::Prefetch;
use hither_kernels::gemm::Precision;
use serde::{Deserialize, Serialize};

use self::gpu::CudaPlan;
use crate::model::Spec;
use crate::run::Device;

/// How a model runs on one machine, as `plan.toml` holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The model's name, so that a plan is not used for another.
    pub model: String,
    /// Where the model runs.
    #[serde(default, with = "text")]
    pub device: Device,
    /// Threads that may share one batch; 0 for all.
    pub threads: usize,
    #[serde(with = "PrecisionName")]
    pub mlp: Precision,
    /// The file of `hot`, beside the plan. Its name changes with the rows, so that plan and rows are
    /// replaced together when the plan is.
    #[serde(default, rename = "hot", skip_serializing_if = "Option::is_none")]
    pub hot_file: Option<String>,
    /// The processor that the plan was measured on; `None` for plans that were not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Processor>,
    /// How the embedding stage runs on a GPU; `None` for its defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<CudaPlan>,
    #[serde(rename = "table")]
    pub tables: Vec<TablePlan>,
    /// For each table the rows that may be packed, hottest first. In a file of their own.
    #[serde(skip)]
    pub hot: Vec<Vec<u32>>,
}

/// The levers of one table.
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

/// What a plan's choices depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// As the system names it.
    pub cpu: String,
    /// Second-level cache of one core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l2_bytes: Option<usize>,
    /// Third-level cache, as the system tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l3_bytes: Option<usize>,
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
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Precision")]
enum PrecisionName {
    #[serde(rename = "fp32")]
    F32,
    #[serde(rename = "bf16")]
    Bf16,
}

/// FNV-1a over words: the same on every machine, unlike the standard library's hashes.
pub(crate) struct Fnv(pub u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    pub fn add(&mut self, word: u64) {
        for byte in word.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
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

impl TablePlan {
    /// The rows where the file has them, fetched far ahead.
    pub fn mapped(name: &str) -> Self {
        Self {
            name: name.into(),
            pages: PageChoice::Mapped,
            prefetch: Prefetch::default(),
            packing: Packing::Off,
            hot_rows: 0,
        }
    }
}

impl Plan {
    /// A default for use without measurements: huge pages, rows fetched far ahead, nothing packed.
    pub fn standard(spec: &Spec) -> Self {
        let table = |name: &str| TablePlan { pages: PageChoice::Huge, ..TablePlan::mapped(name) };
        Self {
            model: spec.name.clone(),
            device: Device::Cpu,
            threads: 0,
            mlp: Precision::F32,
            hot_file: None,
            machine: None,
            cuda: None,
            tables: spec.tables.iter().map(|t| table(&t.name)).collect(),
            hot: vec![Vec::new(); spec.tables.len()],
        }
    }

    /// A warning where the plan was measured on another processor than this one.
    pub fn machine_warning(&self, here: &Processor) -> Option<String> {
        let there = self.machine.as_ref().filter(|there| *there != here)?;
        let cache = |bytes: Option<usize>| bytes.map_or("?".into(), |b| format!("{} KiB", b >> 10));
        let show = |of: &Processor| {
            format!("{} (L2 {}, L3 {})", of.cpu, cache(of.l2_bytes), cache(of.l3_bytes))
        };
        Some(format!(
            "the plan was measured on {}; this is {}: plan again for the best speed",
            show(there),
            show(here)
        ))
    }

    /// The same plan with tables as the file has them: for a host that only checks what a GPU computes.
    pub fn mapped(&self) -> Self {
        let mut plan = self.clone();
        for table in &mut plan.tables {
            (table.pages, table.packing) = (PageChoice::Mapped, Packing::Off);
        }
        plan
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
