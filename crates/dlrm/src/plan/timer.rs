//! Times what a group of tables does in all its places: run against run, in turns.

use std::time::{Duration, Instant};

use hither_kernels::bag::prefetch::Prefetch;
use hither_kernels::bag::quant::Params;
use hither_kernels::bag::touch::Touch;
use hither_kernels::bag::{self, Bags, Dtype, Ids, OutOfRange, Settings, Table};
use hither_kernels::detect::Isa;
use rayon::ThreadPool;

use super::Packing;
use super::expect::{Cost, Costs, Level, SAMPLES, Shares, random_rows};
use super::levers::Setting;
use super::measure::{Bounds, Effect, Timing};
use crate::Error;
use crate::tables::Tables;
use crate::workload::Requests;

/// The same tables in every place that a setting reads them.
pub(super) struct Layouts {
    /// `mapped` and `huge` have copies of hot rows, which a view can leave unused.
    pub mapped: Tables,
    pub huge: Option<Tables>,
    pub small_ids: Option<Tables>,
    pub huge_ids: Option<Tables>,
}

impl Layouts {
    /// `None` where there was no memory for the copy.
    fn view(&self, pages: bool, packing: Packing, prefetch: Prefetch) -> Option<Vec<Table<'_>>> {
        let tables = match (pages, packing) {
            (false, Packing::Ids) => self.small_ids.as_ref()?,
            (true, Packing::Ids) => self.huge_ids.as_ref()?,
            (true, _) => self.huge.as_ref()?,
            (false, _) => &self.mapped,
        };
        let mut view = tables.view();
        for table in &mut view {
            table.hot = table.hot.filter(|_| packing == Packing::Lookup);
            table.prefetch = prefetch;
        }
        Some(view)
    }

    pub fn renumbered(&self, plain: &[Requests], batch: usize) -> Vec<Requests> {
        let Some(tables) = &self.huge_ids else { return Vec::new() };
        let mut renumbered = plain.to_vec();
        for requests in &mut renumbered {
            tables.renumber(&mut requests.ids, &requests.offsets, batch);
        }
        renumbered
    }
}

/// Work that is timed again and again.
struct Run<'a> {
    work: Work<'a>,
    lookups: usize,
    /// Whether an untimed pass precedes each timed one, so that the caches hold what they can.
    warm: bool,
    /// The smallest time so far, per lookup.
    ns: f64,
}

enum Work<'a> {
    Lookup(Vec<Table<'a>>, usize, &'a [Requests]),
    Touch(&'a [Touch<'a>], Prefetch),
}

impl<'a> Run<'a> {
    fn lookup(tables: Vec<Table<'a>>, batch: usize, requests: &'a [Requests]) -> Self {
        let lookups = requests.iter().map(|r| r.ids.len()).sum();
        let work = Work::Lookup(tables, batch, requests);
        Self { work, lookups, warm: false, ns: f64::INFINITY }
    }

    fn once(&mut self, isa: Isa, out: &mut Vec<f32>) -> Result<(), Error> {
        if self.warm {
            self.work.run(isa, out)?;
        }
        let begin = Instant::now();
        self.work.run(isa, out)?;
        let ns = begin.elapsed().as_secs_f64() * 1e9 / self.lookups.max(1) as f64;
        self.ns = self.ns.min(ns);
        Ok(())
    }
}

impl Work<'_> {
    fn run(&self, isa: Isa, out: &mut Vec<f32>) -> Result<(), Error> {
        let settings = Settings { isa, out_of_range: OutOfRange::Error };
        match self {
            Work::Touch(touches, prefetch) => {
                touches.iter().try_for_each(|touch| touch.run(*prefetch))?;
            }
            Work::Lookup(tables, batch, requests) => {
                let width: usize = tables.iter().map(|t| t.dim).sum();
                out.resize(batch * width, 0.0);
                for requests in *requests {
                    let bags = bags(requests, *batch);
                    bag::embed(tables, &bags, out, &settings)?;
                }
            }
        }
        Ok(())
    }
}

fn bags(requests: &Requests, batch: usize) -> Bags<'_> {
    let Requests { ids, offsets, weights } = requests;
    Bags { batch, ids: Ids::I64(ids), offsets, weights: weights.as_deref() }
}

pub(super) struct Timer<'a> {
    pub bounds: &'a Bounds,
    /// Samples per batch.
    pub batch: usize,
    pub pool: ThreadPool,
    pub seconds: f64,
    /// About how many lookups one run makes.
    pub lookups: usize,
}

/// Many short rounds instead of few long ones: some of them will have the machine to themselves.
pub(super) const ROUNDS_MIN: usize = 7;
const ROUNDS_MAX: usize = 50;
impl Timer<'_> {
    /// Times all runs in turns for about so long. What a run finds in the caches depends on the
    /// runs before it: neighbours are taken `apart` runs from each other, so that none finds its
    /// rows where its neighbour left them.
    fn interleave(&self, runs: &mut [Run], apart: usize, seconds: f64) -> Result<(), Error> {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let latest = end + Duration::from_secs_f64(seconds);
        let isa = self.bounds.isa;
        self.pool.install(|| {
            let mut out = Vec::new();
            // The first round only brings everything into memory.
            for round in 0..=ROUNDS_MAX {
                let now = Instant::now();
                if round > ROUNDS_MIN && now >= end || round > 1 && now >= latest {
                    break;
                }
                for first in 0..apart {
                    for run in runs.iter_mut().skip(first).step_by(apart) {
                        run.once(isa, &mut out)?;
                    }
                }
            }
            Ok(())
        })
    }

    pub fn timing(
        &self,
        layouts: &Layouts,
        plain: &[Requests],
        renumbered: &[Requests],
        shares: Shares,
    ) -> Result<Timing, Error> {
        let prefetch = self.prefetch(layouts, plain)?;
        // Whether any prefetch pays is left to the settings, which are measured with and without.
        let best = prefetch
            .iter()
            .filter(|(prefetch, _)| *prefetch != Prefetch::Off)
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map_or(Prefetch::Off, |(prefetch, _)| *prefetch);
        let costs = self.costs(layouts, best)?;
        let mut effects = self.effects(layouts, plain, renumbered, best)?;
        for effect in &mut effects {
            effect.expected_ns = costs.expected_ns(effect.setting, shares);
        }
        let threads = self.pool.current_num_threads();
        Ok(Timing { threads, prefetch, best, effects, costs })
    }

    fn prefetch(
        &self,
        layouts: &Layouts,
        plain: &[Requests],
    ) -> Result<Vec<(Prefetch, f64)>, Error> {
        let batch = self.batch;
        let pages = layouts.huge.is_some();
        let view = |prefetch| layouts.view(pages, Packing::Off, prefetch).unwrap_or_default();
        let candidates = Prefetch::CANDIDATES;
        // All read the same rows: between two of them, others push those out of the caches.
        let others = layouts.view(false, Packing::Off, Prefetch::Off).unwrap_or_default();
        let others = without_padding(others);
        let drawn = [random_rows(&others, None, false, self.lookups)];
        let mut runs = Vec::new();
        for candidate in candidates {
            runs.push(Run::lookup(view(candidate), batch, plain));
            runs.push(Run::lookup(others.clone(), SAMPLES, &drawn));
        }
        self.interleave(&mut runs, 1, self.seconds / 10.0)?;
        let times = runs.iter().step_by(2).map(|run| run.ns);
        Ok(candidates.into_iter().zip(times).collect())
    }

    /// All settings, and the touch of each place.
    fn effects(
        &self,
        layouts: &Layouts,
        plain: &[Requests],
        renumbered: &[Requests],
        best: Prefetch,
    ) -> Result<Vec<Effect>, Error> {
        let batch = self.batch;
        let asked = |packing| if packing == Packing::Ids { renumbered } else { plain };
        let mut places = Vec::new();
        for setting in Setting::all().into_iter().filter(|setting| !setting.prefetch) {
            let Setting { pages, packing, .. } = setting;
            let Some(view) = layouts.view(pages, packing, Prefetch::Off) else { continue };
            let touch = |requests| Touch::new(&view, bags(requests, batch), self.bounds.isa);
            let touches = asked(packing).iter().map(touch).collect::<Result<Vec<_>, _>>()?;
            places.push((setting, touches));
        }
        // One run of every place, then the next of every place: whichever run it is, its rows
        // were last read as many runs ago, and caches favour none.
        let mut runs = Vec::new();
        for prefetch in [Prefetch::Off, best] {
            for (place, _) in &places {
                let view = layouts.view(place.pages, place.packing, prefetch).unwrap_or_default();
                runs.push(Run::lookup(view, batch, asked(place.packing)));
            }
        }
        let lookups = runs.first().map_or(0, |run| run.lookups);
        for prefetch in Prefetch::CANDIDATES {
            runs.extend(places.iter().map(|(_, touches)| Run {
                work: Work::Touch(touches, prefetch),
                lookups,
                warm: false,
                ns: f64::INFINITY,
            }));
        }
        self.interleave(&mut runs, 1, self.seconds * 0.6)?;
        let mut effects = Vec::new();
        for (p, (place, _)) in places.iter().enumerate() {
            let times: Vec<f64> =
                runs.iter().skip(p).step_by(places.len()).map(|run| run.ns).collect();
            // A lookup does all that a touch does: where noise made every touch slower than a
            // lookup, that lookup's time is nearer to what touching takes.
            let touch_ns = times.iter().copied().fold(f64::INFINITY, f64::min);
            for (prefetch, ns) in [(false, times[0]), (true, times[1])] {
                let setting = Setting { prefetch, ..*place };
                effects.push(Effect { setting, ns, touch_ns, expected_ns: f64::NAN });
            }
        }
        effects.sort_by_key(|effect| effect.setting.moved());
        Ok(effects)
    }

    fn costs(&self, layouts: &Layouts, best: Prefetch) -> Result<Costs, Error> {
        let Bounds { l2_bytes, l3_bytes, .. } = *self.bounds;
        let some = layouts.view(false, Packing::Off, Prefetch::Off).unwrap_or_default();
        let drawn = |bytes, packed| vec![random_rows(&some, bytes, packed, self.lookups)];
        let far = random_rows(&some, None, false, self.lookups * 2);
        let sets = [
            (Level::L2, false, drawn(Some(l2_bytes / 2), false)),
            (Level::L2, true, drawn(Some(l2_bytes / 2), true)),
            (Level::L3, false, drawn(Some(l3_bytes / 2), false)),
            (Level::L3, true, drawn(Some(l3_bytes / 2), true)),
            (Level::Memory, false, vec![far]),
        ];
        let (mut rows, mut runs) = (Vec::new(), Vec::new());
        for pages in [false, true] {
            for (level, packed, requests) in &sets {
                for prefetch in [false, true] {
                    let fetched = if prefetch { best } else { Prefetch::Off };
                    let Some(view) = layouts.view(pages, Packing::Off, fetched) else { continue };
                    rows.push(Cost { level: *level, pages, prefetch, packed: *packed, ns: 0.0 });
                    let run = Run::lookup(without_padding(view), SAMPLES, requests);
                    runs.push(Run { warm: *level != Level::Memory, ..run });
                }
            }
        }
        let pages = layouts.huge.is_some();
        // Spread rows, because the cost of the map is that of touching all of its lines.
        for packing in [Packing::Off, Packing::Lookup] {
            let view = layouts.view(pages, packing, best).unwrap_or_default();
            let run = Run::lookup(without_padding(view), SAMPLES, &sets[2].2);
            runs.push(Run { warm: true, ..run });
        }
        // Scales that mean nothing, one per row: reading them costs as much as reading real ones.
        let most = some.iter().map(|table| table.rows).max().unwrap_or(0);
        let params = vec![Params::default(); most];
        let types = types(&some);
        for dtype in &types {
            let view = layouts.view(pages, Packing::Off, best).unwrap_or_default();
            let view = without_padding(view).into_iter().map(|t| as_type(t, *dtype, &params));
            runs.push(Run::lookup(view.collect(), SAMPLES, &sets[4].2));
        }
        self.interleave(&mut runs, 5, self.seconds * 0.3)?;
        for (cost, run) in rows.iter_mut().zip(&runs) {
            cost.ns = run.ns;
        }
        let rest = &runs[rows.len()..];
        let map_ns = (rest[1].ns - rest[0].ns).max(0.0);
        let dim = some.first().map_or(0, |table| table.dim);
        let sizes = types.iter().map(|dtype| dtype.row_bytes(dim));
        let bytes = sizes.zip(rest[2..].iter().map(|run| run.ns)).collect();
        Ok(Costs { rows, map_ns, bytes })
    }
}

fn without_padding(tables: Vec<Table<'_>>) -> Vec<Table<'_>> {
    tables.into_iter().map(|table| Table { padding: None, ..table }).collect()
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
