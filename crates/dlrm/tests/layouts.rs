//! Plans: every layout gives the same scores, memory is taken where a plan says so and nowhere
//! else, and a plan that is not the model's is refused.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use hither_dlrm::Model;
use hither_dlrm::generate::{Shape, generate};
use hither_dlrm::lookups::{Hotness, Lookups, Shape as Bags};
use hither_dlrm::model::TENSORS_FILE;
use hither_dlrm::plan::{Packing, PageChoice, Plan, TablePlan};
use hither_dlrm::run::{Engine, Options, Request, Worker};
use hither_dlrm::tables::Tables;
use hither_kernels::bag::hot::HotMap;
use hither_kernels::bag::prefetch::Prefetch;
use hither_kernels::bag::{Dtype, Pooling};
use tempfile::TempDir;

const ROWS: usize = 300;
const SAMPLES: usize = 7;
const TABLES: usize = 6;
/// A hot row, and an id that no row has: both count for nothing where they are asked for.
const PADDING: [Option<i64>; TABLES] = [None, Some(3), Some(500), Some(-7), None, Some(299)];

/// Tables of every type and pooling, some with padding.
fn model() -> (TempDir, Model) {
    let dir = tempfile::tempdir().expect("a directory");
    let shape = Shape {
        tables: TABLES,
        rows: ROWS,
        dim: 24,
        bottom: vec![5, 24],
        top: vec![6, 1],
        ..Shape::preset("rm1").expect("known")
    };
    let mut spec = shape.spec("small");
    let poolings = [Pooling::Sum, Pooling::Mean, Pooling::Max].into_iter().cycle();
    for (t, (table, pooling)) in spec.tables.iter_mut().zip(poolings).enumerate() {
        table.dtype = Dtype::ALL[t % Dtype::ALL.len()];
        table.pooling = pooling;
        table.padding = PADDING[t];
    }
    generate(&spec, 11, dir.path(), false, &|_| {}).expect("generated");
    let model = Model::open(dir.path()).expect("opened");
    (dir, model)
}

/// Hot ids with padding and pruned rows among them, and their offsets.
fn lookups() -> (Vec<i64>, Vec<i64>) {
    let shape = Bags { batches: 1, batch: SAMPLES, pooling: 9 };
    let drawn = Lookups::draw(Hotness::High, &[ROWS; TABLES], shape, 5);
    let mut ids: Vec<i64> = (0..TABLES).flat_map(|t| drawn.of_table(t)).collect();
    let per_table = ids.len() / TABLES;
    for (t, ids) in ids.chunks_mut(per_table).enumerate() {
        for (at, id) in ids.iter_mut().enumerate() {
            match (at % 5, PADDING[t]) {
                (1, Some(padding)) => *id = padding,
                (3, _) if t % 2 == 0 => *id = -1,
                _ => {}
            }
        }
    }
    (ids, drawn.bags(0).offsets.to_vec())
}

/// The rows that are asked for, padding and what no row has among them.
fn hot(ids: &[i64]) -> Vec<Vec<u32>> {
    let listed = |ids: &[i64]| {
        let mut rows: Vec<u32> = ids.iter().filter_map(|id| u32::try_from(*id).ok()).collect();
        rows.dedup();
        rows
    };
    ids.chunks(ids.len() / TABLES).map(listed).collect()
}

/// A plan's scores, from ids as its tables want them.
fn scores(model: &Model, plan: &Plan) -> Vec<u32> {
    let engine = Engine::load(model, plan, Options::default(), &|_| {}).expect("loaded");
    scores_of(&engine, &plan.to_toml())
}

fn scores_of(engine: &Engine, about: &str) -> Vec<u32> {
    let (ids, offsets) = lookups();
    let dense: Vec<f32> = (0..SAMPLES * 5).map(|i| (i as f32).sin()).collect();
    let mut out = vec![f32::NAN; SAMPLES];
    let request = Request::new(SAMPLES, &dense, &ids, &offsets);
    let done = engine.infer_one(&request, &mut out, &mut Worker::default(), None);
    assert_eq!(done.unwrap_or_else(|error| panic!("{error}\n{about}")).clamped, 0);
    out.iter().map(|score| score.to_bits()).collect()
}

#[test]
fn every_layout_gives_the_same_scores() {
    let (_dir, model) = model();
    let plain = scores(&model, &Plan::nothing(&model.spec));
    assert!(plain.iter().any(|score| *score != plain[0]), "scores say nothing");
    let (ids, _) = lookups();
    for pages in [PageChoice::Mapped, PageChoice::Small, PageChoice::Huge] {
        for prefetch in Prefetch::CANDIDATES {
            for packing in [Packing::Off, Packing::Lookup] {
                for hot_rows in [1, 10, ROWS] {
                    let mut plan = Plan::nothing(&model.spec);
                    plan.threads = 1 + hot_rows % 3;
                    plan.hot = hot(&ids);
                    for table in &mut plan.tables {
                        *table = TablePlan {
                            name: table.name.clone(),
                            pages,
                            prefetch,
                            packing,
                            hot_rows,
                        };
                    }
                    assert_eq!(scores(&model, &plan), plain, "{}", plan.to_toml());
                }
            }
        }
    }
}

/// Tables that share rows are stored once, however often the plan changes.
#[test]
fn shared_tables_are_stored_once_after_every_change_of_pages() {
    let dir = tempfile::tempdir().expect("a directory");
    let shape =
        Shape { tables: 3, rows: 1000, dim: 8, ..Shape::preset("micro24").expect("a preset") };
    let mut spec = Shape { bottom: vec![5, 8], ..shape }.spec("shared");
    for table in [1, 2] {
        spec.tables[table].shares = Some(spec.tables[0].name.clone());
    }
    generate(&spec, 1, dir.path(), false, &|_| {}).expect("generated");
    let model = Model::open(dir.path()).expect("opened");
    let plan = Plan::nothing(&model.spec);
    let engine = Engine::load(&model, &plan, Options::default(), &|_| {}).expect("loaded");
    let one = model.spec.tables[0].bytes() as usize;
    for pages in [PageChoice::Small, PageChoice::Huge, PageChoice::Mapped, PageChoice::Small] {
        let mut next = plan.clone();
        next.tables.iter_mut().for_each(|table| table.pages = pages);
        engine.replan(&next, &|_| {}).expect("a plan of this model");
        let expected = if pages == PageChoice::Mapped { 0 } else { one };
        assert_eq!(engine.tables().backing().bytes, expected, "{pages:?}");
    }
}

/// Hot rows are copied from the memory that serves: the file may have changed since.
#[test]
fn hot_rows_do_not_come_from_a_file_that_has_changed() {
    let (dir, model) = model();
    let plan = Plan::standard(&model.spec);
    let engine = Engine::load(&model, &plan, Options::default(), &|_| {}).expect("loaded");
    let plain = scores_of(&engine, "copied");
    let path = dir.path().join(TENSORS_FILE);
    let len = std::fs::metadata(&path).expect("the file").len() as usize;
    // In place and as long as before: the mapped pages change.
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opened");
    file.write_all_at(&vec![0x3f; len], 0).expect("overwritten");
    let (ids, _) = lookups();
    let mut hot_plan = Plan { hot: hot(&ids), ..plan };
    for table in &mut hot_plan.tables {
        (table.packing, table.hot_rows) = (Packing::Lookup, 10);
    }
    engine.replan(&hot_plan, &|_| {}).expect("a plan of this model");
    assert_eq!(scores_of(&engine, "hot"), plain);
}

/// Lists that did not come from a checked file must not do harm.
#[test]
fn hot_rows_that_no_table_has_are_left_out() {
    let (_dir, model) = model();
    let plain = scores(&model, &Plan::nothing(&model.spec));
    let mut plan = Plan::nothing(&model.spec);
    for (table, hot) in plan.tables.iter_mut().zip(&mut plan.hot) {
        (table.packing, table.hot_rows) = (Packing::Lookup, 50);
        *hot = vec![u32::MAX, 7, ROWS as u32];
    }
    assert_eq!(scores(&model, &plan), plain);
}

#[test]
fn memory_is_taken_as_planned() {
    let (_dir, model) = model();
    let taken = |plan: &Plan| {
        let tables = Tables::load(&model, plan, &|_| {}).expect("loaded");
        assert_eq!((tables.len(), tables.width()), (TABLES, TABLES * 24));
        tables.backing()
    };
    let whole: usize = model.tables().map(|table| table.rows.len()).sum();
    let mut plan = Plan::nothing(&model.spec);
    assert_eq!(taken(&plan).bytes, 0, "mapped tables are not copied");
    for pages in [PageChoice::Small, PageChoice::Huge] {
        plan.tables.iter_mut().for_each(|table| table.pages = pages);
        let backing = taken(&plan);
        assert_eq!(backing.bytes, whole, "{pages:?}");
        if pages == PageChoice::Small {
            assert_eq!(backing.huge_bytes.unwrap_or(0), 0, "never huge");
        }
    }
    // The map's slots are all that is taken beside a mapped file.
    let mut plan = Plan::nothing(&model.spec);
    plan.hot = vec![vec![4, 8, 15]; TABLES];
    for (packing, hot_rows) in [(Packing::Lookup, 2), (Packing::Lookup, 0), (Packing::Off, 2)] {
        for table in &mut plan.tables {
            (table.packing, table.hot_rows) = (packing, hot_rows);
        }
        let lines = |bytes: usize| bytes.next_multiple_of(64);
        let slots = HotMap::new(ROWS, &[4, 8]).slots().len();
        let copies: usize = model.spec.tables.iter().map(|t| slots * lines(t.row_bytes())).sum();
        let is_packed = packing == Packing::Lookup && hot_rows > 0;
        let expected = if is_packed { copies } else { 0 };
        assert_eq!(taken(&plan).bytes, expected, "{packing:?}, {hot_rows} hot rows");
    }
}

/// A plan of the model, written, and opened after a change to its text.
fn opened_with(dir: &Path, model: &Model, change: impl Fn(String) -> String) -> String {
    let mut plan = Plan::standard(&model.spec);
    plan.hot[0] = vec![1, 2, 3];
    (plan.tables[0].packing, plan.tables[0].hot_rows) = (Packing::Lookup, 3);
    let path = plan.save(dir).expect("saved");
    let opened = Plan::open(dir, &model.spec).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(opened, Plan { hot_file: opened.hot_file.clone(), ..plan });
    std::fs::write(&path, change(opened.to_toml())).expect("written");
    let error = Plan::open(dir, &model.spec).expect_err("it is wrong").to_string();
    assert!(error.contains(dir.to_str().expect("text")), "no path in {error}");
    error
}

#[test]
fn plans_that_are_not_the_models_are_refused() {
    let (_dir, model) = model();
    let dir = tempfile::tempdir().expect("a directory");
    let replaced = |from: &str, to: &str| {
        opened_with(dir.path(), &model, |text| {
            assert!(text.contains(from), "{text}");
            text.replacen(from, to, 1)
        })
    };
    for (from, to, told) in [
        ("model = \"small\"", "model = \"large\"", "a plan for `large`, not for `small`"),
        ("threads = 0", "threads = 0\nspeed = 9", "plan.toml:4: unknown field `speed`"),
        ("threads = 0", "threads = -1", "plan.toml:3"),
        ("threads = 0", "threads = 65535", "threads = 65535: must be between 0 and 1024"),
        ("device = \"cpu\"", "device = \"tpu\"", "unknown device `tpu`"),
        ("hot = \"hot.", "hot = \"../hot.", "the name of a file beside it"),
        ("hot_rows = 0", "hot_rows = 0\ncold_rows = 1", "unknown field `cold_rows`"),
        ("name = \"t1\"", "name = \"t2\"", "table `t2` stands where the model has `t1`"),
        ("hot_rows = 3", "hot_rows = 301", "table `t0` cannot have more hot rows than its 300"),
        ("hot_rows = 3", "hot_rows = 4", "numbers of 4 rows of table `t0`"),
        ("packing = \"off\"", "packing = \"of\"", "`of`"),
        (
            "packing = \"off\"\nhot_rows = 0",
            "packing = \"lookup\"\nhot_rows = 1",
            "`hot.1` is missing",
        ),
        ("mlp = \"fp32\"", "mlp = \"fp8\"", "plan.toml:4"),
        ("prefetch = \"l2:32K", "prefetch = \"l2:9999K", "bytes from 64 to 1024K"),
        ("pages = \"huge\"", "", "plan.toml:"),
    ] {
        let error = replaced(from, to);
        assert!(error.contains(told), "no {told:?} in {error}");
    }
    let cut = opened_with(dir.path(), &model, |text| {
        text[..text.rfind("[[table]]").expect("tables")].to_owned()
    });
    assert!(cut.contains("it has 5 tables, the model 6"), "{cut}");
}

#[test]
fn plans_whose_hot_rows_are_not_there_are_refused() {
    let (_dir, model) = model();
    let dir = tempfile::tempdir().expect("a directory");
    let files = || -> Vec<std::path::PathBuf> {
        let files = std::fs::read_dir(dir.path()).expect("listed").flatten().map(|f| f.path());
        files.filter(|path| path.extension().is_some_and(|e| e == "safetensors")).collect()
    };
    let absent = opened_with(dir.path(), &model, |text| {
        files().iter().for_each(|file| std::fs::remove_file(file).expect("removed"));
        text
    });
    assert!(absent.contains("hot.") && absent.contains(".safetensors"), "{absent}");
    // Each plan has rows of its own, and leaves none of another behind.
    for rows in [vec![1, 2], vec![2, 1], vec![7]] {
        let mut plan = Plan::standard(&model.spec);
        (plan.tables[0].packing, plan.tables[0].hot_rows) = (Packing::Lookup, rows.len());
        plan.hot[0] = rows.clone();
        plan.save(dir.path()).expect("saved");
        assert_eq!(Plan::open(dir.path(), &model.spec).expect("a plan").hot[0], rows);
        assert_eq!(files().len(), 1);
    }
    let mut plan = Plan::standard(&model.spec);
    plan.hot[0] = vec![1, ROWS as u32];
    (plan.tables[0].packing, plan.tables[0].hot_rows) = (Packing::Lookup, 2);
    plan.save(dir.path()).expect("saved");
    let error = Plan::open(dir.path(), &model.spec).expect_err("no such row").to_string();
    assert!(error.contains("`hot.0` does not hold the numbers of 2 rows of table `t0`"), "{error}");
    let error = Plan::open(&dir.path().join("other"), &model.spec).expect_err("none").to_string();
    assert!(error.contains("other"), "{error}");
}
