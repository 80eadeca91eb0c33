//! Histograms against plain counting, requests against plain reading, and what is chosen from
//! forged measurements.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hither_data::{Dense, IdTrace};
use hither_dlrm::generate::{Shape, generate};
use hither_dlrm::hotness::{Histogram, fitting};
use hither_dlrm::model::Spec;
use hither_dlrm::plan::levers::Setting;
use hither_dlrm::plan::make::{Overrides, make};
use hither_dlrm::plan::measure::{Bounds, Effect, Group, Timing, hot_rows, measure};
use hither_dlrm::plan::{Packing, PageChoice, Plan};
use hither_dlrm::tables::Tables;
use hither_dlrm::workload::{Reading, Workload};
use hither_dlrm::{Error, Model};
use hither_kernels::bag::Dtype;
use hither_kernels::bag::prefetch::Prefetch;
use hither_kernels::detect;
use hither_kernels::gemm::Precision;
use proptest::prelude::*;

fn spec(tables: usize, rows: usize) -> Spec {
    let shape = Shape {
        tables,
        rows,
        dim: 16,
        bottom: vec![4, 16],
        top: vec![1],
        ..Shape::preset("rm1").expect("known")
    };
    shape.spec("small")
}

proptest! {
    #[test]
    fn histograms_count(ids in prop::collection::vec(0u32..40, 0..300), rows in 0usize..50) {
        let histogram = Histogram::new(ids.clone());
        let mut counts = BTreeMap::<u32, u64>::new();
        ids.iter().for_each(|id| *counts.entry(*id).or_default() += 1);
        let mut sorted: Vec<(u64, u32)> = counts.iter().map(|(id, n)| (u64::MAX - n, *id)).collect();
        sorted.sort_unstable();
        let hottest: Vec<u32> = sorted.iter().map(|(_, id)| *id).collect();
        prop_assert_eq!(histogram.lookups(), ids.len() as u64);
        prop_assert_eq!(histogram.unique(), counts.len());
        prop_assert_eq!(histogram.hottest(rows), &hottest[..rows.min(hottest.len())]);
        let taken: u64 = hottest.iter().take(rows).map(|id| counts[id]).sum();
        let share = if ids.is_empty() { 1.0 } else { taken as f64 / ids.len() as f64 };
        prop_assert_eq!(histogram.share(rows), share);
    }

    #[test]
    fn curves_rise_to_all(ids in prop::collection::vec(0u32..5000, 1..2000), points in 1usize..60) {
        let histogram = Histogram::new(ids);
        let curve = histogram.curve(points);
        prop_assert!(curve.len() <= points);
        prop_assert!(curve.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1));
        prop_assert_eq!(curve.last().copied(), Some((histogram.unique(), 1.0)));
        prop_assert!(curve.iter().all(|(rows, share)| histogram.share(*rows) == *share));
    }

    /// What fits is within its bytes, and no row left out is asked for more than one that is in.
    #[test]
    fn the_hottest_rows_fit(
        tables in prop::collection::vec(prop::collection::vec(0u32..30, 0..200), 1..5),
        sizes in prop::collection::vec(1usize..5, 5),
        bytes in 0usize..200,
    ) {
        let tables: Vec<Histogram> = tables.into_iter().map(Histogram::new).collect();
        let sizes: Vec<usize> = sizes[..tables.len()].iter().map(|size| size * 4).collect();
        let rows = fitting(&tables.iter().collect::<Vec<_>>(), &sizes, bytes);
        let used: usize = rows.iter().zip(&sizes).map(|(n, size)| n * size).sum();
        prop_assert!(used <= bytes);
        let each = || tables.iter().zip(&rows);
        prop_assert!(each().all(|(table, rows)| *rows <= table.unique()));
        let inside = each().filter_map(|(t, n)| t.counts()[..*n].last()).min();
        let outside = each().filter_map(|(t, n)| t.counts()[*n..].first()).max();
        if let Some((inside, outside)) = inside.zip(outside) {
            prop_assert!(inside >= outside);
        }
    }

    #[test]
    fn plain_lists_are_read_in_circles(
        ids in prop::collection::vec(0i64..50, 1..40), batch in 1usize..4, pooling in 1usize..4,
    ) {
        let spec = spec(3, 50);
        let trace = IdTrace { ids: ids.clone(), ..IdTrace::default() };
        let reading = Reading { batch: Some(batch), pooling, wrap: false };
        let workload = Workload::new(&trace, &spec, reading).expect("fits");
        let mut circle = ids.iter().cycle();
        for requests in workload.requests(&[0, 1, 2], 100) {
            let expected: Vec<i64> =
                circle.by_ref().take(3 * batch * pooling).copied().collect();
            prop_assert_eq!(requests.ids, expected);
            let offsets: Vec<i64> = (0..=3 * batch).map(|bag| (bag * pooling) as i64).collect();
            prop_assert_eq!(requests.offsets, offsets);
        }
        prop_assert_eq!(workload.histograms().expect("in range")[2].lookups(), ids.len() as u64);
    }
}

fn bags(ids: Vec<i64>, offsets: Vec<i64>) -> IdTrace {
    IdTrace { ids, offsets: Some(offsets), ..IdTrace::default() }
}

const READING: Reading = Reading { batch: None, pooling: 1, wrap: false };

/// Eight bags of one id each, for two tables: 4 samples in batches of 1, 2 or 4.
#[test]
fn a_batch_that_nobody_tells_is_refused() {
    let spec = spec(2, 10);
    let mut trace = bags((0..8).collect(), (0..=8).collect());
    let told = |trace: &IdTrace, reading| match Workload::new(trace, &spec, reading) {
        Ok(workload) => panic!("read with batches of {}", workload.batch()),
        Err(error) => error.to_string(),
    };
    let error = told(&trace, READING);
    assert!(error.contains("give --batch N (4 if all are one batch)"), "{error}");
    let of = |trace: &IdTrace, batch| {
        let reading = Reading { batch, ..READING };
        let workload = Workload::new(trace, &spec, reading).expect("told");
        (workload.first(9).into_iter().map(|r| r.ids).collect::<Vec<_>>(), workload.left_over())
    };
    assert_eq!(of(&trace, Some(2)).0, [[0, 1, 2, 3], [4, 5, 6, 7]]);
    assert_eq!(of(&trace, Some(4)).0, [[0, 1, 2, 3, 4, 5, 6, 7]]);
    trace.batch = Some(2);
    assert_eq!(of(&trace, None), of(&trace, Some(2)));
    let error = told(&trace, Reading { batch: Some(4), ..READING });
    assert!(error.contains("--batch 4 contradicts the trace, which has batches of 2"), "{error}");
    trace.ids[5] = 10;
    let bad = Workload::new(&trace, &spec, READING).expect("told").check_ids();
    let error = bad.expect_err("out of range").to_string();
    let (batch, wrap) = (error.find("--batch 2"), error.find("--wrap"));
    assert!(batch.is_some() && batch < wrap, "{error}");

    // Sample by sample, every batch is possible; whole ones are taken.
    let samples = IdTrace { by_sample: true, ..bags((0..8).collect(), (0..=8).collect()) };
    assert_eq!(of(&samples, Some(2)).0, [[0, 2, 1, 3], [4, 6, 5, 7]]);
    assert_eq!(of(&samples, Some(3)), (vec![vec![0, 2, 4, 1, 3, 5]], 1));
    assert_eq!(of(&samples, None).0, [[0, 2, 4, 6, 1, 3, 5, 7]]);
    // Nor is there more than one way with one sample, or with one table.
    assert_eq!(of(&bags(vec![3, 4], vec![0, 1, 2]), None).0, [[3, 4]]);
    let one = self::spec(1, 10);
    let single = bags(vec![3, 4, 5], vec![0, 1, 2, 3]);
    assert_eq!(Workload::new(&single, &one, READING).expect("one way").batch(), 3);
}

#[test]
fn features_that_do_not_fit_are_refused() {
    let spec = spec(2, 10);
    let dense = |rows, width| {
        Some(Dense { rows, width, values: (0..rows * width).map(|x| x as f32).collect() })
    };
    let trace =
        |dense| IdTrace { by_sample: true, dense, ..bags((0..4).collect(), (0..=4).collect()) };
    let good = trace(dense(2, 4));
    let workload = Workload::new(&good, &spec, READING).expect("fits");
    assert_eq!(workload.dense(1..2), Some(&[4.0, 5.0, 6.0, 7.0][..]));
    let plain = IdTrace { ids: vec![1], dense: dense(1, 4), ..IdTrace::default() };
    for (trace, told) in [
        (trace(dense(3, 4)), "`dense` has 3 rows; the bags are of 2 samples"),
        (trace(dense(2, 5)), "`dense` has 5 features per sample; the model takes 4"),
        (plain, "the ids form no bags"),
        (IdTrace { tables: Some(3), ..good.clone() }, "the trace has 3 tables; the model has 2"),
        (bags(vec![1; 3], vec![0, 1, 2, 3]), "needs a multiple of 2"),
    ] {
        let error = Workload::new(&trace, &spec, READING).err().expect(told).to_string();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn traces_with_bags_give_each_table_its_own() {
    let spec = spec(2, 10);
    // Two batches of one sample: table 0 has bags [1, 2] and [2], table 1 [3] and [].
    let trace = bags(vec![1, 2, 3, 2], vec![0, 2, 3, 4, 4]);
    let reading = Reading { batch: Some(1), pooling: 7, wrap: false };
    let workload = Workload::new(&trace, &spec, reading).expect("fits");
    let hot = workload.histograms().expect("in range");
    assert_eq!((hot[0].hottest(9), hot[0].lookups()), (&[2, 1][..], 3));
    assert_eq!((hot[1].hottest(9), hot[1].lookups()), (&[3][..], 1));
    let second = workload.requests(&[1], 100);
    assert_eq!(second.len(), 2);
    assert_eq!((second[0].ids.as_slice(), second[0].offsets.as_slice()), (&[3][..], &[0, 1][..]));
    assert_eq!((second[1].ids.as_slice(), second[1].offsets.as_slice()), (&[][..], &[0, 0][..]));
    assert_eq!(workload.lookups_per_batch(), 1.0);
    let wrong = Workload::new(&trace, &spec, Reading { batch: Some(3), ..reading });
    assert!(matches!(wrong, Err(Error::TraceCut { samples: 2, tables: 2, batch: 3 })));
}

#[test]
fn ids_out_of_range_are_told_or_wrapped() {
    let mut spec = spec(2, 10);
    spec.tables[1].rows = 5;
    spec.tables[0].padding = Some(99);
    let trace = IdTrace { ids: vec![9, -1, 7], ..IdTrace::default() };
    let mut reading = Reading { batch: Some(1), pooling: 3, wrap: false };
    let told = Workload::new(&trace, &spec, reading).expect("fits").histograms();
    assert!(matches!(
        told,
        Err(Error::TraceId { id: 9, position: 0, ref table, rows: 5, batch: None }) if table == "t1"
    ));
    reading.wrap = true;
    let workload = Workload::new(&trace, &spec, reading).expect("fits");
    let hot = workload.histograms().expect("wrapped");
    assert_eq!(hot[0].hottest(9), [7, 9]);
    assert_eq!(hot[1].hottest(9), [2, 4]);
    assert_eq!(workload.requests(&[1], 1)[0].ids, [4, -1, 2]);
    let padded = IdTrace { ids: vec![99, 3, -7], ..IdTrace::default() };
    let workload = Workload::new(&padded, &spec, reading).expect("fits");
    assert_eq!(workload.histograms().expect("wrapped")[0].hottest(9), [3]);
}

fn forged(threads: usize, best: Prefetch, ns: impl Fn(Setting) -> f64) -> Timing {
    let effect = |setting: Setting| Effect {
        setting,
        prefetch: if setting.prefetch { best } else { Prefetch::Off },
        ns: ns(setting),
        touch_ns: 1.0,
        touch_prefetch: best,
    };
    let effects = Setting::all().into_iter().map(effect).collect();
    Timing { threads, effects, types: Vec::new() }
}

fn group(tables: Vec<usize>, huge_share: f64, timings: Vec<Timing>) -> Group {
    let huge_share = Some(huge_share);
    Group { sampled: tables.clone(), tables, copied: true, huge_share, timings }
}

#[test]
fn packing_is_chosen_where_it_gains() {
    let spec = spec(3, 100);
    let one = Arc::new(Histogram::new(vec![5, 5, 5, 2, 2, 9]));
    let hot = [Arc::clone(&one), Arc::clone(&one), one];
    let far = "l2:16K".parse::<Prefetch>().expect("a scheme");
    let gains = |lookup: f64| {
        move |s: Setting| {
            let rows = match s.packing {
                Packing::Off => 100.0,
                Packing::Lookup => lookup,
            };
            rows + if s.pages { 0.0 } else { 20.0 } + if s.prefetch { 0.0 } else { 10.0 }
        }
    };
    let two = |best, lookup| vec![forged(1, best, |_| 200.0), forged(2, best, gains(lookup))];
    let groups = [group(vec![0, 2], 1.0, two(far, 96.0)), group(vec![1], 0.0, two(far, 98.0))];
    let make =
        |room, overrides: &Overrides| make(&spec, &hot, &[2, 2, 0], &groups, room, overrides);
    let plan = make(u64::MAX, &Overrides::default());
    let chosen: Vec<_> = plan.tables.iter().map(|t| (t.pages, t.prefetch, t.packing)).collect();
    // Of table 2 no row is hot enough; table 1 gains within the noise and got no huge pages.
    assert_eq!(
        chosen,
        [
            (PageChoice::Huge, far, Packing::Lookup),
            (PageChoice::Mapped, far, Packing::Off),
            (PageChoice::Huge, far, Packing::Off),
        ]
    );
    assert_eq!(plan.tables.iter().map(|t| t.hot_rows).collect::<Vec<_>>(), [2, 0, 0]);
    // Rows that were asked for once are not listed.
    assert_eq!(plan.hot[0], [5, 2]);
    assert_eq!(make(10, &Overrides::default()).tables[0].pages, PageChoice::Mapped);

    let overrides = Overrides {
        pages: Some(PageChoice::Small),
        prefetch: Some(Prefetch::Off),
        packing: Some(Packing::Lookup),
        threads: Some(7),
        mlp: Some(Precision::Bf16),
        hot_rows: None,
    };
    let plan = make(0, &overrides);
    assert_eq!((plan.threads, plan.mlp), (7, Precision::Bf16));
    let table = &plan.tables[0];
    assert_eq!((table.pages, table.prefetch), (PageChoice::Small, Prefetch::Off));
    assert_eq!((table.packing, table.hot_rows), (Packing::Lookup, 2));
}

/// No lever is on by rule, and none for a gain that may be noise.
#[test]
fn pages_and_prefetch_are_chosen_where_they_gain() {
    let spec = spec(1, 100);
    let hot = [Arc::new(Histogram::new(vec![1]))];
    let far = "l2:32K".parse::<Prefetch>().expect("a scheme");
    let chosen = |pages_ns: f64, prefetch_ns: f64| {
        let ns = move |s: Setting| {
            let pages = if s.pages { pages_ns } else { 0.0 };
            100.0 + pages + if s.prefetch { prefetch_ns } else { 0.0 }
        };
        let groups = [group(vec![0], 1.0, vec![forged(1, far, ns)])];
        let plan = make(&spec, &hot, &[1], &groups, u64::MAX, &Overrides::default());
        (plan.tables[0].pages, plan.tables[0].prefetch)
    };
    assert_eq!(chosen(-20.0, -20.0), (PageChoice::Huge, far));
    assert_eq!(chosen(20.0, -20.0), (PageChoice::Mapped, far));
    assert_eq!(chosen(-20.0, 20.0), (PageChoice::Huge, Prefetch::Off));
    assert_eq!(chosen(-2.0, -20.0), (PageChoice::Mapped, far));
    assert_eq!(chosen(-1.0, -1.0), (PageChoice::Mapped, Prefetch::Off));
    let overrides = Overrides { pages: Some(PageChoice::Huge), ..Overrides::default() };
    let groups =
        [group(vec![0], 1.0, vec![forged(1, far, |s| if s.pages { 200.0 } else { 100.0 })])];
    let plan = make(&spec, &hot, &[1], &groups, u64::MAX, &overrides);
    assert_eq!((plan.tables[0].pages, plan.tables[0].prefetch), (PageChoice::Huge, Prefetch::Off));
}

#[test]
fn threads_are_taken_where_they_help() {
    let spec = spec(1, 100);
    let hot = [Arc::new(Histogram::new(vec![1]))];
    let plan = |all: f64| {
        let timings =
            vec![forged(1, Prefetch::Off, |_| 100.0), forged(4, Prefetch::Off, move |_| all)];
        let groups = [group(vec![0], 1.0, timings)];
        make(&spec, &hot, &[1], &groups, u64::MAX, &Overrides::default()).threads
    };
    assert_eq!((plan(50.0), plan(105.0), plan(120.0)), (0, 0, 1));
}

fn small_model(dir: &Path) -> Model {
    let spec = spec(3, 400);
    generate(&spec, 1, dir, false, &|_| {}).expect("written");
    Model::open(dir).expect("a model")
}

/// The whole way on a small model: what is measured is whole, and the plan opens and loads.
#[test]
fn measured_plans_open_and_load() {
    let dir = tempfile::tempdir().expect("a directory");
    let model = small_model(dir.path());
    let ids = (0..4000).map(|i: i64| (i * i) % 397 % (1 + i % 60)).collect();
    let trace = IdTrace { ids, ..IdTrace::default() };
    let reading = Reading { batch: Some(4), pooling: 8, wrap: false };
    let workload = Workload::new(&trace, &model.spec, reading).expect("fits");
    let hot = workload.histograms().expect("in range");
    for (copy_bytes, copied, settings) in [(1 << 30, true, 8), (0, false, 4)] {
        let bounds = Bounds {
            l2_bytes: 1 << 11,
            l3_bytes: 1 << 13,
            copy_bytes,
            seconds: 0.02,
            threads: 2,
            isa: detect::cpu().isa,
        };
        let packed = hot_rows(&model, &hot, bounds.l3_bytes);
        assert!(packed.iter().all(|rows| *rows == (1 << 12) / 64 / 3), "{packed:?}");
        let groups =
            measure(&model, &workload, &hot, &packed, &bounds, &|_, _| {}).expect("measured");
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].copied, copied);
        for timing in &groups[0].timings {
            assert_eq!(timing.effects.len(), settings);
            let types: Vec<Dtype> = timing.types.iter().map(|(dtype, _)| *dtype).collect();
            assert_eq!(types, [Dtype::F32, Dtype::Int8, Dtype::Int4]);
            assert!(timing.types.iter().all(|(_, ns)| ns.is_finite() && *ns > 0.0));
            for effect in &timing.effects {
                assert!(effect.ns.is_finite() && effect.touch_ns > 0.0, "{effect:?}");
                assert!(effect.touch_ns <= effect.ns, "{effect:?}");
            }
        }
        for packing in [Packing::Off, Packing::Lookup] {
            let overrides = Overrides { packing: Some(packing), ..Overrides::default() };
            let plan = make(&model.spec, &hot, &packed, &groups, u64::MAX, &overrides);
            plan.save(dir.path()).expect("written");
            let opened = Plan::open(dir.path(), &model.spec).expect("a plan");
            assert_eq!(opened.tables, plan.tables);
            assert_eq!((opened.threads, opened.mlp), (plan.threads, plan.mlp));
            if packing != Packing::Off {
                assert_eq!(opened.hot, plan.hot);
            }
            assert_eq!(Tables::load(&model, &opened, &|_| {}).expect("loaded").len(), 3);
        }
    }
}
