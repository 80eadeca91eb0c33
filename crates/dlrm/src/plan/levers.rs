//! The levers that are measured, each alone and together.

use std::fmt;
use std::str::FromStr;

use hither_kernels::bag::prefetch::Prefetch;

use super::{Packing, PageChoice, TablePlan};

/// Which levers are moved. Threads are counted beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
        for packing in [Packing::Off, Packing::Lookup] {
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

    /// Whether it reads a copy of the tables, not the mapped file.
    pub fn needs_copy(self) -> bool {
        self.pages
    }

    /// The setting without prefetch: where rows lie, and all that a touch of them depends on.
    pub fn place(self) -> Self {
        Self { prefetch: false, ..self }
    }

    /// The setting that a table's plan comes to.
    pub fn planned(table: &TablePlan) -> Self {
        Self {
            pages: table.pages == PageChoice::Huge,
            prefetch: table.prefetch != Prefetch::Off,
            packing: table.packing,
        }
    }
}

/// Smaller gains may be noise.
pub const GAIN_MIN: f64 = 1.03;

/// The place of the best of some settings and their times: of those that are as fast as the
/// fastest but for the noise, the one that moves the fewest levers.
pub fn best(times: &[(Setting, f64)]) -> Option<usize> {
    let least = times.iter().map(|(_, time)| *time).fold(f64::INFINITY, f64::min);
    let good = (0..times.len()).filter(|at| times[*at].1 <= least * GAIN_MIN);
    let order = |at: &usize| (times[*at].0.moved(), times[*at].1);
    good.min_by(|a, b| {
        let (a, b) = (order(a), order(b));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    })
}

/// `none`, or the levers joined by `+`.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packing = match self.packing {
            Packing::Off => None,
            Packing::Lookup => Some("lookup"),
        };
        let (pages, prefetch) =
            (self.pages.then_some("pages"), self.prefetch.then_some("prefetch"));
        let names: Vec<&str> = pages.into_iter().chain(prefetch).chain(packing).collect();
        f.pad(&if names.is_empty() { "none".into() } else { names.join("+") })
    }
}

/// `none`, or some of `pages`, `prefetch` and `lookup`, joined by `+`.
impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut setting = Self::NONE;
        for name in text.split('+').map(str::trim).filter(|name| *name != "none") {
            match name {
                "pages" => setting.pages = true,
                "prefetch" => setting.prefetch = true,
                "lookup" => setting.packing = Packing::Lookup,
                _ => {
                    return Err(format!(
                        "unknown lever `{name}`; the levers are none, pages, prefetch and lookup"
                    ));
                }
            }
        }
        Ok(setting)
    }
}
