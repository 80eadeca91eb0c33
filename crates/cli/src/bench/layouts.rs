//! The levers of a lookup, and tables laid out as they say.

use std::collections::HashMap;
use std::str::FromStr;
use std::time::Instant;

use hither_dlrm::Model;
use hither_dlrm::lookups::Lookups;
use hither_dlrm::plan::{Packing, PageChoice, Plan};
use hither_dlrm::tables::Tables;
use hither_kernels::bag::prefetch::Prefetch;
use hither_kernels::bag::{OutOfRange, Output, Settings, Table, embed};
use hither_kernels::detect;

/// Which levers are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Levers {
    /// Huge pages.
    pub pages: bool,
    pub prefetch: bool,
    pub packing: Packing,
}

impl Levers {
    /// What a plan takes unless a measurement speaks against it.
    pub const AUTO: Self = Self { pages: true, prefetch: true, packing: Packing::Off };
    pub const NONE: Self = Self { pages: false, prefetch: false, packing: Packing::Off };

    /// Each lever alone, in pairs, and all: what the levers add to each other.
    pub fn each() -> Vec<Self> {
        let mut all = Vec::new();
        for packing in [Packing::Off, Packing::Ids, Packing::Lookup] {
            for (pages, prefetch) in [(false, false), (false, true), (true, false), (true, true)] {
                all.push(Self { pages, prefetch, packing });
            }
        }
        all
    }

    pub fn name(&self) -> String {
        let packing = match self.packing {
            Packing::Off => None,
            Packing::Ids => Some("packing"),
            Packing::Lookup => Some("lookup"),
        };
        let pages = self.pages.then_some("pages");
        let prefetch = self.prefetch.then_some("prefetch");
        let names: Vec<&str> = pages.into_iter().chain(prefetch).chain(packing).collect();
        if names.is_empty() { "none".into() } else { names.join("+") }
    }
}

/// `none`, or some of `pages`, `prefetch` and one of `packing` and `lookup`, joined by `+`.
impl FromStr for Levers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut levers = Self::NONE;
        for name in text.split('+').filter(|name| *name != "none") {
            match name {
                "pages" => levers.pages = true,
                "prefetch" => levers.prefetch = true,
                "packing" | "lookup" if levers.packing != Packing::Off => {
                    return Err(format!("`{text}` packs twice: one of packing and lookup"));
                }
                "packing" => levers.packing = Packing::Ids,
                "lookup" => levers.packing = Packing::Lookup,
                _ => {
                    return Err(format!(
                        "`{name}` is no lever: none, pages, prefetch, packing or lookup"
                    ));
                }
            }
        }
        Ok(levers)
    }
}

/// Tables as some levers lay them out, and the ids by which their rows are asked for.
pub struct Layout {
    pub tables: Tables,
    pub lookups: Lookups,
}

/// Each layout once, however many variants read it.
pub struct Layouts {
    made: HashMap<(PageChoice, Packing), Layout>,
}

fn key(levers: Levers) -> (PageChoice, Packing) {
    // The file's own pages are small; a reordered table cannot be read there.
    let pages = match (levers.pages, levers.packing) {
        (true, _) => PageChoice::Huge,
        (false, Packing::Ids) => PageChoice::Small,
        (false, _) => PageChoice::Mapped,
    };
    (pages, levers.packing)
}

impl Layouts {
    /// `hot_bytes` is what all packed rows may take; which they are, `planned` tells.
    pub fn new(
        model: &Model,
        lookups: &Lookups,
        planned: &Lookups,
        levers: &[Levers],
        hot_bytes: usize,
    ) -> Result<Self, hither_dlrm::Error> {
        let mut made = HashMap::new();
        for levers in levers {
            let (pages, packing) = key(*levers);
            if made.contains_key(&(pages, packing)) {
                continue;
            }
            let mut plan = Plan::standard(&model.spec);
            let each = hot_bytes / model.spec.tables.len().max(1);
            for (t, (choice, table)) in plan.tables.iter_mut().zip(&model.spec.tables).enumerate() {
                choice.pages = pages;
                choice.packing = packing;
                if packing != Packing::Off {
                    // Copies take room; another order of the same rows takes none.
                    let rows = match packing {
                        Packing::Ids => table.rows,
                        _ => (each / table.row_bytes().max(1)).max(1),
                    };
                    plan.hot[t] = planned.hottest(t, rows);
                    choice.hot_rows = plan.hot[t].len();
                }
            }
            let tables = Tables::load(model, &plan, &|_| ())?;
            let mut lookups = lookups.clone();
            lookups.change(|ids, offsets, batch| tables.renumber(ids, offsets, batch));
            made.insert((pages, packing), Layout { tables, lookups });
        }
        Ok(Self { made })
    }

    /// Of some sets with prefetch, the one that is fastest on the first batches.
    pub fn fastest(&self, sets: &[Levers], scheme: Option<Prefetch>) -> anyhow::Result<Levers> {
        let mut best = (sets[0], f64::INFINITY);
        for set in sets.iter().filter(|_| sets.len() > 1) {
            let took = match scheme {
                Some(prefetch) => self.of(*set).shortest(prefetch)?,
                None => self.of(*set).fastest()?.1,
            };
            if took < best.1 * GAIN_MIN || best.1.is_infinite() {
                best = (*set, took);
            }
        }
        Ok(best.0)
    }

    pub fn of(&self, levers: Levers) -> &Layout {
        &self.made[&key(levers)]
    }
}

impl Layout {
    /// The tables, with one prefetch scheme for all.
    pub fn view(&self, prefetch: Prefetch) -> Vec<Table<'_>> {
        self.tables.view().into_iter().map(|table| Table { prefetch, ..table }).collect()
    }

    /// One batch.
    pub fn pool(&self, tables: &[Table], k: usize, out: &mut [f32]) -> anyhow::Result<()> {
        let settings = Settings { isa: detect::cpu().isa, out_of_range: OutOfRange::Error };
        embed(tables, &self.lookups.bags(k), &mut Output::F32(out), &settings)?;
        Ok(())
    }

    /// The scheme that is fastest on the first batches, as a plan would choose it, and its time.
    pub fn fastest(&self) -> anyhow::Result<(Prefetch, f64)> {
        let mut best = (Prefetch::default(), f64::INFINITY);
        for prefetch in Prefetch::CANDIDATES {
            let took = self.shortest(prefetch)?;
            if took < best.1 {
                best = (prefetch, took);
            }
        }
        Ok(best)
    }

    /// Seconds that the first batches take.
    fn shortest(&self, prefetch: Prefetch) -> anyhow::Result<f64> {
        let mut out = vec![0.0; self.lookups.batch * self.tables.width()];
        let tables = self.view(prefetch);
        let mut shortest = f64::INFINITY;
        for _ in 0..TRIES {
            let start = Instant::now();
            for k in 0..self.lookups.len().min(TRIED_BATCHES) {
                self.pool(&tables, k, &mut out)?;
            }
            shortest = shortest.min(start.elapsed().as_secs_f64());
        }
        Ok(shortest)
    }
}

/// A lever that gains less than this is left alone.
const GAIN_MIN: f64 = 0.97;
const TRIES: usize = 3;
const TRIED_BATCHES: usize = 32;
