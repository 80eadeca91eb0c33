//! How the embedding stage runs on a GPU: names and parameters. The code is that of the crate `hither-cuda`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The levers of a GPU. Hot rows are those of the tables: packed side by side where `packing` is not
/// `off`, and pinned as the variant says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CudaPlan {
    #[serde(with = "super::text")]
    pub variant: Variant,
    /// Rows that are fetched ahead.
    pub distance: u32,
    /// Blocks that must fit an SM, which caps the registers; 0 for no cap.
    pub min_blocks: u32,
    /// Cold rows stay in host memory and are read over the bus: for tables that exceed the GPU's.
    #[serde(default)]
    pub cold_on_host: bool,
}

impl Default for CudaPlan {
    fn default() -> Self {
        Self { variant: Variant::VEC4, distance: 4, min_blocks: 0, cold_on_host: false }
    }
}

/// How rows are fetched ahead of their use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ahead {
    None,
    /// Into registers, DISTANCE rows ahead.
    Register,
    /// Batches of DISTANCE rows through registers into shared memory.
    Shared,
    /// Batches of DISTANCE rows through registers into local memory, which L1 holds.
    Local,
    /// One request per line into L1, DISTANCE rows ahead.
    L1,
    /// One request per line into L2, DISTANCE rows ahead.
    L2,
}

/// How hot rows are kept in L2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pinning {
    None,
    /// A kernel of its own reads them into L2 once, before the first lookup.
    Prefetch,
    /// Loads of hot rows carry the policy evict_last, loads of cold rows evict_first.
    Policy,
}

/// A technique or a combination of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    pub name: &'static str,
    pub ahead: Ahead,
    pub pinning: Pinning,
    /// Elements per thread and load: 1 or 4.
    pub vec: u32,
}

const fn variant(name: &'static str, ahead: Ahead, pinning: Pinning) -> Variant {
    Variant { name, ahead, pinning, vec: 4 }
}

impl Variant {
    pub const BASE: Self = Self { vec: 1, ..variant("base", Ahead::None, Pinning::None) };
    pub const VEC4: Self = variant("vec4", Ahead::None, Pinning::None);
    pub const COMBINED: Self = variant("combined", Ahead::Register, Pinning::Policy);

    pub const ALL: [Self; 9] = [
        Self::BASE,
        Self::VEC4,
        variant("register", Ahead::Register, Pinning::None),
        variant("shared", Ahead::Shared, Pinning::None),
        variant("local", Ahead::Local, Pinning::None),
        variant("l1", Ahead::L1, Pinning::None),
        variant("l2", Ahead::L2, Pinning::None),
        variant("pin-prefetch", Ahead::None, Pinning::Prefetch),
        Self::COMBINED,
    ];

    /// Whether the variant has code of its own. Pinning by a kernel that runs before runs the code of
    /// `vec4`.
    pub fn has_own_code(self) -> bool {
        self.pinning != Pinning::Prefetch
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

impl FromStr for Variant {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|variant| variant.name == name).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().map(|variant| variant.name).collect();
            format!("unknown variant `{name}`; expected {}", known.join(", "))
        })
    }
}
