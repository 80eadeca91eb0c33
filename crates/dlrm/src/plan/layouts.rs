//! The same tables in every place from which a setting of the levers reads them, each place once.

use std::sync::Arc;

use hither_kernels::bag::Table;
use hither_kernels::bag::prefetch::Prefetch;

use super::levers::Setting;
use super::{Packing, PageChoice, Plan};
use crate::Error;
use crate::hotness::Histogram;
use crate::lookups::Lookups;
use crate::model::Model;
use crate::tables::Tables;

/// Tables in some places. Copies of hot rows can be left unused, so that settings with and without
/// them share a place; tables in another order are their own.
pub struct Layouts {
    places: Vec<(Place, Tables)>,
}

/// The rows that may be packed, and how many of each table are.
pub struct HotRows<'a> {
    pub histograms: &'a [Arc<Histogram>],
    pub packed: &'a [usize],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    pages: PageChoice,
    is_reordered: bool,
}

impl Place {
    fn new(setting: Setting) -> Self {
        let is_reordered = setting.packing == Packing::Ids;
        let pages = match (setting.pages, is_reordered) {
            (true, _) => PageChoice::Huge,
            // The mapped file is in its own order: other orders need a copy.
            (false, true) => PageChoice::Small,
            (false, false) => PageChoice::Mapped,
        };
        Self { pages, is_reordered }
    }

    fn all(settings: &[Setting]) -> Vec<Self> {
        let mut places = Vec::new();
        for place in settings.iter().map(|setting| Self::new(*setting)) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }
}

impl Layouts {
    /// How many copies of all tables these settings keep in memory.
    pub fn copies(settings: &[Setting]) -> usize {
        Place::all(settings).iter().filter(|place| place.pages != PageChoice::Mapped).count()
    }

    /// Lays out some of a model's tables as the settings need them.
    pub fn new(
        model: &Model,
        tables: &[usize],
        hot: &HotRows,
        settings: &[Setting],
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, Error> {
        let places = Place::all(settings).into_iter().map(|place| {
            let shares = |other: &&Setting| Place::new(**other) == place;
            let packing = settings.iter().filter(shares).map(|setting| setting.packing);
            let packing = packing.max_by_key(|packing| *packing != Packing::Off);
            let packing = packing.unwrap_or(Packing::Off);
            let mut plan = Plan::nothing(&model.spec);
            for &t in tables {
                // Copies take room; another order of the same rows takes none.
                let rows = match packing {
                    Packing::Off => 0,
                    Packing::Lookup => hot.packed[t],
                    Packing::Ids => usize::MAX,
                };
                plan.hot[t] = hot.histograms[t].hottest(rows).to_vec();
                let table = &mut plan.tables[t];
                table.hot_rows = plan.hot[t].len();
                (table.pages, table.packing) = (place.pages, packing);
            }
            Ok((place, Tables::load_some(model, &plan, tables, done)?))
        });
        Ok(Self { places: places.collect::<Result<_, Error>>()? })
    }

    /// The tables that a setting reads; `None` where they were not laid out.
    pub fn tables(&self, setting: Setting) -> Option<&Tables> {
        let place = Place::new(setting);
        self.places.iter().find(|(other, _)| *other == place).map(|(_, tables)| tables)
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

    /// The same lookups by the numbers that reordered tables have; `None` where none is reordered.
    pub fn renumbered(&self, plain: &Lookups) -> Option<Lookups> {
        let (_, tables) = self.places.iter().find(|(place, _)| place.is_reordered)?;
        let mut lookups = plain.clone();
        lookups.change(|ids, offsets, batch| tables.renumber(ids, offsets, batch));
        Some(lookups)
    }
}
