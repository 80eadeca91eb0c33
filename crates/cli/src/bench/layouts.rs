//! Tables laid out as some levers say, each layout once.

use std::collections::HashMap;

use hither_dlrm::Model;
use hither_dlrm::lookups::Lookups;
use hither_dlrm::plan::levers::Setting;
use hither_dlrm::plan::{Packing, PageChoice, Plan};
use hither_dlrm::tables::Tables;
use hither_kernels::bag::prefetch::Prefetch;
use hither_kernels::bag::{OutOfRange, Settings, Table, embed};
use hither_kernels::detect;

/// Tables as some levers lay them out, and the ids by which their rows are asked for.
pub struct Layout {
    pub tables: Tables,
    pub lookups: Lookups,
}

/// Each layout once, however many settings read it. Copies of hot rows can be left unused, so that
/// settings with and without them share a layout; tables in another order are their own.
pub struct Layouts {
    made: HashMap<Key, Layout>,
}

type Key = (PageChoice, Order);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Order {
    AsSaved,
    HottestFirst,
}

fn key(setting: Setting) -> Key {
    match (setting.pages, setting.packing) {
        (true, Packing::Ids) => (PageChoice::Huge, Order::HottestFirst),
        // The mapped file is in its own order: other orders need a copy.
        (false, Packing::Ids) => (PageChoice::Small, Order::HottestFirst),
        (true, _) => (PageChoice::Huge, Order::AsSaved),
        (false, _) => (PageChoice::Mapped, Order::AsSaved),
    }
}

/// How many copies of all tables these settings keep in memory.
pub fn copies(settings: &[Setting]) -> usize {
    let mut keys: Vec<Key> = Vec::new();
    for key in settings.iter().map(|setting| key(*setting)) {
        if key.0 != PageChoice::Mapped && !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.len()
}

impl Layouts {
    /// `hot_bytes` is what all packed rows may take; they are the rows that `planned` asks for most.
    pub fn new(
        model: &Model,
        lookups: &Lookups,
        planned: &Lookups,
        settings: &[Setting],
        hot_bytes: usize,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, hither_dlrm::Error> {
        let mut made = HashMap::new();
        for setting in settings {
            let (pages, order) = key(*setting);
            if made.contains_key(&(pages, order)) {
                continue;
            }
            let shares = |other: &&Setting| key(**other) == (pages, order);
            let packing = settings.iter().filter(shares).map(|s| s.packing);
            let packing = packing.max_by_key(|packing| *packing != Packing::Off);
            let packing = packing.unwrap_or(Packing::Off);
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
            let tables = Tables::load(model, &plan, done)?;
            let mut lookups = lookups.clone();
            lookups.change(|ids, offsets, batch| tables.renumber(ids, offsets, batch));
            made.insert((pages, order), Layout { tables, lookups });
        }
        Ok(Self { made })
    }

    pub fn of(&self, setting: Setting) -> &Layout {
        &self.made[&key(setting)]
    }

    /// The tables as a setting reads them, with one prefetch scheme for all.
    pub fn view(&self, setting: Setting, prefetch: Prefetch) -> Vec<Table<'_>> {
        let tables = self.of(setting).tables.view().into_iter();
        let uses_copies = setting.packing == Packing::Lookup;
        tables
            .map(|table| Table { prefetch, hot: table.hot.filter(|_| uses_copies), ..table })
            .collect()
    }
}

impl Layout {
    /// Pools one batch.
    pub fn pool(&self, tables: &[Table], k: usize, out: &mut [f32]) -> anyhow::Result<()> {
        let settings = Settings { isa: detect::cpu().isa, out_of_range: OutOfRange::Error };
        embed(tables, &self.lookups.bags(k), out, &settings)?;
        Ok(())
    }
}
