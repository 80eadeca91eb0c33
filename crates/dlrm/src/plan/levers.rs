//! The levers that are measured, each alone and together.

use super::Packing;

/// Which levers are moved. Threads are counted beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Huge pages, not those of the mapped file.
    pub pages: bool,
    /// The best prefetch, not none.
    pub prefetch: bool,
    pub packing: Packing,
}

impl Setting {
    pub const NONE: Self = Self { pages: false, prefetch: false, packing: Packing::Off };

    /// Nothing first, then each lever alone, then pairs, then all.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for packing in [Packing::Off, Packing::Lookup, Packing::Ids] {
            for (pages, prefetch) in [(false, false), (true, false), (false, true), (true, true)] {
                all.push(Self { pages, prefetch, packing });
            }
        }
        all.sort_by_key(|s| s.moved());
        all
    }

    pub fn moved(self) -> usize {
        usize::from(self.pages)
            + usize::from(self.prefetch)
            + usize::from(self.packing != Packing::Off)
    }

    pub fn name(self) -> String {
        let mut names = Vec::new();
        if self.pages {
            names.push("pages");
        }
        if self.prefetch {
            names.push("prefetch");
        }
        match self.packing {
            Packing::Off => {}
            Packing::Lookup => names.push("packing (lookup)"),
            Packing::Ids => names.push("packing (ids)"),
        }
        if names.is_empty() { "none".into() } else { names.join(" + ") }
    }
}
