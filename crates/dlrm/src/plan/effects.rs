//! How much each lever gains on the cores of this machine, with given lookups.

use std::cell::RefCell;

use hither_kernels::bag::prefetch::{self, Prefetch};
use hither_kernels::bag::quant::Params;
use hither_kernels::bag::touch::Touch;
use hither_kernels::bag::{Bags, Dtype, Prepared, Table};
use hither_kernels::detect::Isa;
use hither_kernels::memory;

use super::crew::Crew;
use super::layouts::Layouts;
use super::levers::Setting;
use super::timer::{Timed, interleave};
use crate::Error;
use crate::lookups::Lookups;
use crate::mlp::{LINE, aligned};

/// What a setting costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    pub setting: Setting,
    /// The scheme that it was measured with: the fastest, or none.
    pub prefetch: Prefetch,
    /// Nanoseconds per row.
    pub ns: f64,
    /// Nanoseconds per row of a reference that only reads the same rows in the same places, with
    /// the prefetch that is best for it.
    pub touch_ns: f64,
    pub touch_prefetch: Prefetch,
}

/// Times lookups on some threads.
pub struct Meter {
    crew: RefCell<Crew>,
    isa: Isa,
}

/// Of schemes whose times differ by less, the simplest is taken.
const SEARCH_MARGIN: f64 = 0.02;
/// A search takes about so many steps.
const SEARCH_STEPS: f64 = 5.0;

impl Meter {
    pub fn new(threads: usize, isa: Isa) -> Result<Self, Error> {
        Ok(Self { crew: RefCell::new(Crew::new(threads)?), isa })
    }

    pub fn threads(&self) -> usize {
        self.crew.borrow().count()
    }

    /// A pass over all lookups.
    pub fn lookup<'m>(
        &'m self,
        tables: Vec<Table<'m>>,
        lookups: &'m Lookups,
    ) -> Result<Timed<'m>, Error> {
        let len = lookups.batch * tables.iter().map(|t| t.dim).sum::<usize>();
        // On huge pages, as large buffers of results should be: each bag is written to another page.
        let mut out = memory::zeros(len + LINE).into_vec();
        let mut pool = self.pooling(tables)?;
        let pass = move || {
            (0..lookups.len()).try_for_each(|k| pool(&lookups.bags(k), aligned(&mut out, len)))
        };
        Ok(Timed::new(lookups.ids(), Box::new(pass)))
    }

    /// Pools one batch after the other.
    pub fn pooling<'m>(
        &'m self,
        tables: Vec<Table<'m>>,
    ) -> Result<impl FnMut(&Bags, &mut [f32]) -> Result<(), Error> + 'm, Error> {
        let tables = Prepared::new(tables, Vec::new(), self.isa)?;
        Ok(move |bags: &Bags, out: &mut [f32]| self.crew.borrow_mut().pool(&tables, bags, out))
    }

    /// A pass that only reads the same rows.
    pub fn touch<'m>(
        &'m self,
        tables: Vec<Table<'m>>,
        prefetch: Prefetch,
        lookups: &'m Lookups,
    ) -> Result<Timed<'m>, Error> {
        let touch = Touch::new(&tables, prefetch, self.isa)?;
        let pass = move || {
            let mut crew = self.crew.borrow_mut();
            (0..lookups.len()).try_for_each(|k| crew.touch(&touch, &lookups.bags(k)))
        };
        Ok(Timed::new(lookups.ids(), Box::new(pass)))
    }

    /// The fastest prefetch for some lookups. `tables` returns the tables with a given prefetch.
    pub fn search<'m>(
        &'m self,
        tables: impl Fn(Prefetch) -> Vec<Table<'m>>,
        lookups: &'m Lookups,
        seconds: f64,
    ) -> Result<Prefetch, Error> {
        prefetch::search(SEARCH_MARGIN, |ways| {
            let run = |way: &Prefetch| -> Result<_, Error> {
                Ok(self.lookup(tables(*way), lookups)?.competing(0))
            };
            let mut runs = ways.iter().map(run).collect::<Result<Vec<_>, _>>()?;
            interleave(&mut runs, seconds / SEARCH_STEPS)?;
            Ok(runs.iter().map(|run| run.ns).collect())
        })
    }

    /// The schemes that settings are measured with: some of each kind, and the one that a search
    /// finds where no row is packed.
    pub fn schemes(
        &self,
        layouts: &Layouts,
        lookups: &Lookups,
        seconds: f64,
    ) -> Result<Vec<Prefetch>, Error> {
        let huge = Setting { pages: true, ..Setting::NONE };
        let place =
            [huge, Setting::NONE].into_iter().find(|place| layouts.tables(*place).is_some());
        let mut schemes = Prefetch::CANDIDATES.to_vec();
        if let Some(place) = place {
            let tables = |prefetch| layouts.view(place, prefetch).unwrap_or_default();
            let best = self.search(tables, lookups, seconds)?;
            schemes.extend(Some(best).filter(|best| !schemes.contains(best)));
        }
        Ok(schemes)
    }

    /// All settings that the layouts have places for, each with the fastest of `schemes`, and the
    /// touch of each place. A setting without prefetch is measured without.
    pub fn effects(
        &self,
        layouts: &Layouts,
        lookups: &Lookups,
        settings: &[Setting],
        schemes: &[Prefetch],
        seconds: f64,
    ) -> Result<Vec<Effect>, Error> {
        let mut places: Vec<Setting> = Vec::new();
        for place in settings.iter().map(|setting| setting.place()) {
            let is_there = layouts.tables(place).is_some();
            if is_there && !places.contains(&place) {
                places.push(place);
            }
        }
        let with_none: Vec<Prefetch> = std::iter::once(Prefetch::Off)
            .chain(schemes.iter().copied().filter(|scheme| *scheme != Prefetch::Off))
            .collect();
        // One pass of every place, then the next of every place: whichever pass it is, its rows were
        // last read as many passes ago, and caches favour none.
        let mut runs = Vec::new();
        for is_touch in [false, true] {
            for scheme in &with_none {
                for (at, place) in places.iter().enumerate() {
                    let view = layouts.view(*place, *scheme).unwrap_or_default();
                    runs.push(match (is_touch, *scheme) {
                        (true, _) => {
                            self.touch(view, *scheme, lookups)?.competing(places.len() + at)
                        }
                        // A setting without prefetch has a time of its own.
                        (false, Prefetch::Off) => self.lookup(view, lookups)?,
                        (false, _) => self.lookup(view, lookups)?.competing(at),
                    });
                }
            }
        }
        interleave(&mut runs, seconds)?;
        let times = |place: usize, first: usize| {
            let runs = runs[first * places.len()..].iter().skip(place).step_by(places.len());
            with_none.iter().copied().zip(runs.map(|run| run.ns))
        };
        let fastest = |times: &mut dyn Iterator<Item = (Prefetch, f64)>| {
            times.min_by(|a, b| a.1.total_cmp(&b.1))
        };
        let mut effects = Vec::new();
        for setting in settings {
            let Some(place) = places.iter().position(|place| *place == setting.place()) else {
                continue;
            };
            let count = if setting.prefetch { with_none.len() } else { 1 };
            let skip = usize::from(setting.prefetch && with_none.len() > 1);
            let own = fastest(&mut times(place, 0).take(count).skip(skip));
            let touch = fastest(&mut times(place, with_none.len()));
            let (Some((prefetch, ns)), Some((touch_prefetch, touch_ns))) = (own, touch) else {
                continue;
            };
            // A lookup does all that a touch does: where noise made every touch slower than a
            // lookup, that lookup's time is nearer to what touching takes.
            let touch_ns =
                times(place, 0).take(with_none.len()).map(|t| t.1).fold(touch_ns, f64::min);
            let setting = *setting;
            effects.push(Effect { setting, prefetch, ns, touch_ns, touch_prefetch });
        }
        Ok(effects)
    }

    /// Nanoseconds per row of the tables' own type and of smaller ones, whose rows lie where the tables' rows lie.
    pub(super) fn types(
        &self,
        layouts: &Layouts,
        lookups: &Lookups,
        best: Prefetch,
        seconds: f64,
    ) -> Result<Vec<(Dtype, f64)>, Error> {
        let pages = Setting { pages: true, ..Setting::NONE };
        let place = if layouts.tables(pages).is_some() { pages } else { Setting::NONE };
        let tables = layouts.view(place, best).unwrap_or_default();
        // Scales that mean nothing, one per row: reading them costs as much as reading real ones.
        let most = tables.iter().map(|table| table.rows).max().unwrap_or(0);
        let params = vec![Params::default(); most];
        let types = types(&tables);
        let run = |dtype: &Dtype| {
            let tables = tables.iter().map(|table| as_type(*table, *dtype, &params));
            self.lookup(tables.collect(), lookups)
        };
        let mut runs = types.iter().map(run).collect::<Result<Vec<_>, _>>()?;
        interleave(&mut runs, seconds)?;
        Ok(types.into_iter().zip(runs.iter().map(|run| run.ns)).collect())
    }
}

/// The tables' own type, and quantised types with smaller rows.
fn types(tables: &[Table]) -> Vec<Dtype> {
    let Some(table) = tables.first() else { return Vec::new() };
    let smaller = |dtype: &Dtype| dtype.row_bytes(table.dim) < table.dtype.row_bytes(table.dim);
    let quantised = [Dtype::Int8, Dtype::Int4].into_iter().filter(smaller);
    std::iter::once(table.dtype).chain(quantised).collect()
}

/// The same places, read as rows of another type; the values do not matter here.
fn as_type<'a>(table: Table<'a>, dtype: Dtype, params: &'a [Params]) -> Table<'a> {
    if dtype == table.dtype {
        return table;
    }
    Table { dtype, params: &params[..table.rows], hot: None, ..table }
}
