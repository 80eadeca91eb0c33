//! The same tables in every place from which a setting of the levers reads them, each place once.

use std::sync::Arc;

use hither_kernels::bag::Table;
use hither_kernels::bag::prefetch::Prefetch;

use super::levers::Setting;
use super::{Packing, PageChoice, Plan};
use crate::Error;
use crate::hotness::Histogram;
use crate::model::Model;
use crate::tables::Tables;

/// Tables on some pages. Copies of hot rows can be left unused, so that settings with and without them share
/// a place.
pub struct Layouts {
    places: Vec<(PageChoice, Tables)>,
}

/// The rows that may be packed, and how many of each table are.
pub struct HotRows<'a> {
    pub histograms: &'a [Arc<Histogram>],
    pub packed: &'a [usize],
}

/// Where a setting reads the tables.
fn place(setting: Setting) -> PageChoice {
    if setting.pages { PageChoice::Huge } else { PageChoice::Mapped }
}

fn places(settings: &[Setting]) -> Vec<PageChoice> {
    let mut places = Vec::new();
    for place in settings.iter().map(|setting| place(*setting)) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

impl Layouts {
    /// How many copies of all tables these settings keep in memory.
    pub fn copies(settings: &[Setting]) -> usize {
        places(settings).iter().filter(|place| **place != PageChoice::Mapped).count()
    }

    /// Lays out some of a model's tables as the settings need them.
    pub fn new(
        model: &Model,
        tables: &[usize],
        hot: &HotRows,
        settings: &[Setting],
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, Error> {
        let places = places(settings).into_iter().map(|pages| {
            let here = settings.iter().filter(|other| place(**other) == pages);
            let is_packed = here.clone().any(|setting| setting.packing == Packing::Lookup);
            let packing = if is_packed { Packing::Lookup } else { Packing::Off };
            let mut plan = Plan::nothing(&model.spec);
            for &t in tables {
                let rows = if is_packed { hot.packed[t] } else { 0 };
                plan.hot[t] = hot.histograms[t].hottest(rows).to_vec();
                let table = &mut plan.tables[t];
                table.hot_rows = plan.hot[t].len();
                (table.pages, table.packing) = (pages, packing);
            }
            Ok((pages, Tables::load_some(model, &plan, tables, done)?))
        });
        Ok(Self { places: places.collect::<Result<_, Error>>()? })
    }

    /// The tables that a setting reads; `None` where they were not laid out.
    pub fn tables(&self, setting: Setting) -> Option<&Tables> {
        self.places.iter().find(|(other, _)| *other == place(setting)).map(|(_, tables)| tables)
    }

    /// The tables as a setting reads them, with one prefetch for all.
    pub fn view(&self, setting: Setting, prefetch: Prefetch) -> Option<Vec<Table<'_>>> {
        let mut view = self.tables(setting)?.view();
        for table in &mut view {
            table.hot = table.hot.filter(|_| setting.packing == Packing::Lookup);
            table.prefetch = prefetch;
        }
        Some(view)
    }
}
