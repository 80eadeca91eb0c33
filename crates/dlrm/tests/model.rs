//! Models on disk: written, opened, converted, exported, and everything that can be wrong.

use std::collections::BTreeMap;
use std::path::Path;

use half::{bf16, f16};
use hither_data::safetensors::{Entry, Writer};
use hither_data::{Checkpoint, Dtype as Element};
use hither_dlrm::generate::{PRESETS, Shape, generate};
use hither_dlrm::import::{Import, Options};
use hither_dlrm::model::{Cross, Interaction, Layout, Projection, Spec};
use hither_dlrm::{Error, Model};
use hither_kernels::bag::quant::{Foreign, Params, int4_element};
use hither_kernels::bag::{Dtype, Pooling};
use tempfile::TempDir;

/// Interactions of generated models.
const DRAWN: [Interaction; 4] =
    [Interaction::Dot, Interaction::DotItself, Interaction::Cat, Interaction::Dcn];

fn shape(dtype: Dtype, interaction: Interaction) -> Shape {
    let cross = (interaction == Interaction::Dcn).then_some(Cross { layers: 2, rank: 3 });
    Shape {
        tables: 3,
        rows: 2500,
        dim: 17,
        dtype,
        pooling: Pooling::Mean,
        ids_per_bag: 1,
        interaction,
        cross,
        bottom: vec![5, 8, 17],
        top: vec![6, 1],
        sigmoid: true,
    }
}

/// A model of the given type of elements in a directory of its own.
fn made(dtype: Dtype, interaction: Interaction) -> (TempDir, Model) {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = shape(dtype, interaction).spec("small");
    generate(&spec, 7, dir.path(), false, &|_| {}).expect("generated");
    let model = Model::open(dir.path()).expect("what was written opens");
    (dir, model)
}

/// A row of a table as floats.
fn row(model: &Model, table: usize, row: usize) -> Vec<f32> {
    let data = model.tables().nth(table).expect("the table");
    let (dim, stride) = (data.spec.dim, data.spec.row_bytes());
    let bytes = &data.rows[row * stride..][..stride];
    let params =
        data.params.map(|params| bytemuck::pod_read_unaligned::<Params>(&params[row * 4..][..4]));
    let level = |d: usize| match data.spec.dtype {
        Dtype::Int4 => int4_element(bytes, d),
        _ => bytes[d],
    };
    let value = |d: usize| match (data.spec.dtype, params) {
        (_, Some(params)) => params.scale.to_f32() * f32::from(level(d)) + params.bias.to_f32(),
        (Dtype::F16, _) => f16::from_le_bytes([bytes[d * 2], bytes[d * 2 + 1]]).to_f32(),
        (Dtype::Bf16, _) => bf16::from_le_bytes([bytes[d * 2], bytes[d * 2 + 1]]).to_f32(),
        _ => f32::from_le_bytes(bytes[d * 4..][..4].try_into().expect("four bytes")),
    };
    (0..dim).map(value).collect()
}

fn file(dir: &Path) -> Vec<u8> {
    std::fs::read(dir.join("model.safetensors")).expect("the tensors")
}

#[test]
fn every_form_is_written_and_opened() {
    for dtype in Dtype::ALL {
        for interaction in DRAWN {
            let (_dir, model) = made(dtype, interaction);
            assert_eq!(model.spec, shape(dtype, interaction).spec("small"));
            assert_eq!(model.tables().len(), 3);
            assert_eq!((model.bottom().len(), model.top().len()), (2, 2));
            assert_eq!(model.top()[0].weight.len(), 6 * model.spec.interaction_width());
            assert_eq!(model.cross().len(), if interaction == Interaction::Dcn { 2 } else { 0 });
            let limit = 1.0 / 50.0 * 1.01;
            assert!(row(&model, 2, 2499).iter().all(|value| value.abs() <= limit));
            assert!(row(&model, 2, 2499).iter().any(|value| *value != 0.0));
            assert!(model.tables().all(|t| t.rows.is_mapped() && t.rows.as_ptr().addr() % 64 == 0));
        }
    }
}

#[test]
fn a_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let spec = shape(Dtype::Int8, Interaction::Dcn).spec("small");
    let bytes = |threads: usize, seed: u64| {
        let dir = tempfile::tempdir().expect("a directory");
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        pool.install(|| generate(&spec, seed, dir.path(), false, &|_| {})).expect("generated");
        file(dir.path())
    };
    assert!(bytes(1, 7) == bytes(3, 7));
    assert!(bytes(1, 7) != bytes(1, 8));
}

#[test]
fn presets_are_whole_shapes() {
    for name in PRESETS {
        Shape::preset(name).expect(name).spec(name).check().expect(name);
    }
    assert!(matches!(Shape::preset("rm9"), Err(Error::UnknownPreset { .. })));
}

#[test]
fn conversions_stay_within_a_step() {
    let (_dir, model) = made(Dtype::F32, Interaction::Dot);
    for (dtype, bound) in
        [(Dtype::F16, 1e-5), (Dtype::Bf16, 1e-4), (Dtype::Int8, 1e-4), (Dtype::Int4, 1.5e-3)]
    {
        let out = tempfile::tempdir().expect("a directory");
        let told = std::cell::Cell::new(0);
        // The middle table stays as it is.
        let dtypes = [dtype, Dtype::F32, dtype];
        let spec = model
            .convert(&dtypes, out.path(), false, &|bytes| told.set(told.get() + bytes))
            .expect("converted");
        let converted = Model::open(out.path()).expect("opened");
        assert_eq!(told.get(), spec.tables.iter().map(|table| table.bytes()).sum::<u64>());
        assert_eq!(converted.spec, spec);
        assert_eq!(
            converted.bytes("top_l.0.weight").expect("there")[..],
            model.bytes("top_l.0.weight").expect("there")[..]
        );
        for table in 0..3 {
            for at in [0, 1, 999, 2499] {
                let (old, new) = (row(&model, table, at), row(&converted, table, at));
                let worst = old.iter().zip(&new).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                let bound = if table == 1 { 0.0 } else { bound };
                assert!(worst <= bound, "{} table {table}: {worst}", dtype.name());
            }
        }
    }
}

#[test]
fn quantised_tables_are_not_quantised_again() {
    let (_dir, model) = made(Dtype::Int8, Interaction::Dot);
    let out = tempfile::tempdir().expect("a directory");
    let error = model.convert(&[Dtype::Int8, Dtype::Int8, Dtype::Int4], out.path(), false, &|_| {});
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("table `t2` is int8 and cannot become int4"), "{error}");
    assert_eq!(std::fs::read_dir(out.path()).expect("the directory").count(), 0);
}

#[test]
fn rows_go_to_other_programs_and_come_back() {
    for (dtype, layout, foreign) in [
        (Dtype::Int8, Layout::Fbgemm, Foreign::FbgemmInt8),
        (Dtype::Int8, Layout::Torch, Foreign::TorchInt8),
        (Dtype::Int4, Layout::Fbgemm, Foreign::FbgemmInt4),
        (Dtype::Int4, Layout::Torch, Foreign::TorchInt4),
    ] {
        let (dir, model) = made(dtype, Interaction::Dcn);
        let path = dir.path().join("exported.safetensors");
        model.export(layout, &path, &|_| {}).expect("exported");
        let exported = Checkpoint::open(&path).expect("opened");
        let rows = &exported.tensors["emb_l.0.weight"];
        assert_eq!(
            (rows.dtype, &rows.shape[..]),
            (Element::U8, &[2500, foreign.row_bytes(17)][..])
        );

        let options =
            Options { rows: Some(foreign), pooling: Some(Pooling::Mean), ..Options::default() };
        let import = Import::read(&exported, &options).expect("understood");
        let back = tempfile::tempdir().expect("a directory");
        import.write(back.path(), false, &|_| {}).expect("written");
        assert!(file(back.path()) == file(dir.path()), "{foreign:?}");
        let error =
            Import::read(&exported, &Options::default()).expect_err("no layout").to_string();
        assert!(error.contains("`emb_l.0.weight` is uint8") && error.contains("--rows"), "{error}");
    }
}

#[test]
fn a_model_is_not_overwritten_unasked() {
    let (dir, model) = made(Dtype::F32, Interaction::Dot);
    let again = |force| generate(&model.spec, 8, dir.path(), force, &|_| {});
    assert!(matches!(again(false), Err(Error::Exists { .. })));
    again(true).expect("forced");
    Model::open(dir.path()).expect("whole");
    let mut names: Vec<_> = std::fs::read_dir(dir.path())
        .expect("listed")
        .map(|e| e.expect("one").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["model.safetensors", "model.toml"]);
}

/// Changes the description, and tells how opening fails.
fn opened_with(change: impl Fn(String) -> String) -> String {
    let (dir, _) = made(Dtype::F32, Interaction::Dcn);
    let path = dir.path().join("model.toml");
    let text = std::fs::read_to_string(&path).expect("the description");
    std::fs::write(&path, change(text)).expect("written");
    Model::open(dir.path()).expect_err("wrong").to_string()
}

#[test]
fn wrong_descriptions() {
    let cases: [(&str, &str, &str); 16] = [
        ("name = \"small\"", "name = 3", "model.toml:1:"),
        ("name = \"small\"", "nome = \"small\"", "unknown field `nome`"),
        ("sigmoid = true", "", "missing field `sigmoid`"),
        ("\"dcn\"", "\"fm\"", "unknown variant `fm`"),
        ("\"dcn\"", "\"cat\"", "[cross] is for interaction"),
        ("\"dcn\"", "\"dot\"", "[cross] is for interaction"),
        ("rank = 3", "rank = 0", "[cross] has no possible size"),
        ("rank = 3", "rank = 4", "`cross_l.0.w` is fp32 [68, 3], expected fp32 [68, 4]"),
        ("layers = 2", "layers = 3", "tensor `cross_l.2.w` is missing"),
        ("layers = 2", "layers = 1", "tensor `cross_l.1.bias` belongs to no known part"),
        (
            "rows = 2500",
            "rows = 2501",
            "`emb_l.0.weight` is fp32 [2500, 17], expected fp32 [2501, 17]",
        ),
        ("rows = 2500", "rows = 0", "table `t0` has 0 rows"),
        ("rows = 2500", "rows = 4294967296", "table `t0` has 4294967296 rows"),
        (
            "dtype = \"fp32\"",
            "dtype = \"fp16\"",
            "`emb_l.0.weight` is fp32 [2500, 17], expected fp16",
        ),
        ("dtype = \"fp32\"", "dtype = \"int8\"", "tensor `emb_l.0.rows` is missing"),
        ("name = \"t1\"", "name = \"t0\"", "more than one table is named `t0`"),
    ];
    for (from, to, expected) in cases {
        let error = opened_with(|text| {
            assert!(text.contains(from), "{from} is not in {text}");
            text.replacen(from, to, 1)
        });
        assert!(error.contains(expected), "{to}: {error}");
    }
    let sizes = |from: &str, to: &str| {
        opened_with(|text| {
            let start = text.find(from).expect("there");
            let end = start + text[start..].find(']').expect("a list") + 1;
            text[..start].to_string() + to + &text[end..]
        })
    };
    assert!(
        sizes("top = [", "top = [70, 6, 1]")
            .contains("top begins with 70, and the interaction `dcn` gives 68")
    );
    assert!(
        sizes("top = [", "top = [68, 7, 1]")
            .contains("`top_l.0.weight` is fp32 [6, 68], expected fp32 [7, 68]")
    );
    assert!(sizes("bottom = [", "bottom = [5]").contains("needs at least an input and an output"));
    assert!(sizes("bottom = [", "bottom = [5, 0, 17]").contains("bottom has a layer of 0"));
}

#[test]
fn wrong_directories() {
    let (dir, model) = made(Dtype::F32, Interaction::Dot);
    let error = |path: &Path| Model::open(path).expect_err("wrong").to_string();
    assert!(error(&dir.path().join("absent")).contains("cannot open"));
    assert!(error(tempfile::tempdir().expect("a directory").path()).contains("has no model.toml"));

    let bytes = file(dir.path());
    let tensors = dir.path().join("model.safetensors");
    std::fs::write(&tensors, &bytes[..bytes.len() - 1]).expect("cut");
    assert!(error(dir.path()).contains("was it cut off?"));
    std::fs::remove_file(&tensors).expect("removed");
    assert!(error(dir.path()).contains("cannot open"));
    drop(model);
}

#[test]
fn tables_of_different_dims_need_no_dot_products() {
    let mut spec = shape(Dtype::F32, Interaction::Cat).spec("small");
    spec.tables[1].dim = 3;
    spec.top[0] = spec.interaction_width();
    spec.check().expect("cat takes any dims");
    let dot = Spec { interaction: Interaction::Dot, ..spec };
    assert!(dot.check().expect_err("dot does not").contains("table `t1` has dim 3"));
}

/// What PyTorch's users would load: names, and nothing but their own tensors beside padding.
#[test]
fn other_readers_find_the_names() {
    let (dir, _) = made(Dtype::F32, Interaction::Dot);
    let names: Vec<String> = Checkpoint::open(dir.path().join("model.safetensors"))
        .expect("opened")
        .tensors
        .into_keys()
        .collect();
    let expected = [
        "bot_l.0.bias",
        "bot_l.0.weight",
        "bot_l.2.bias",
        "bot_l.2.weight",
        "emb_l.0.weight",
        "emb_l.1.weight",
        "emb_l.2.weight",
        "top_l.0.bias",
        "top_l.0.weight",
        "top_l.2.bias",
        "top_l.2.weight",
    ];
    assert_eq!(names, expected);
}

/// A file of tensors of zeros.
fn zeros(dir: &Path, tensors: &[(&str, Element, &[usize])]) -> Checkpoint {
    let path = dir.join("zeros.safetensors");
    let entries: Vec<Entry> = tensors.iter().map(|(n, d, s)| Entry::new(*n, *d, s)).collect();
    let mut writer = Writer::create(&path, &entries, &BTreeMap::new()).expect("created");
    for entry in &entries {
        let bytes = entry.shape.iter().product::<usize>() * entry.dtype.bytes();
        writer.write(&vec![0; bytes]).expect("written");
    }
    writer.finish().expect("finished");
    Checkpoint::open(path).expect("opened")
}

#[test]
fn imports_of_wrong_shapes() {
    use Element::{F32, I64};
    type Change<'a> = &'a [(&'a str, Option<(Element, &'a [usize])>)];
    let good: [(&str, Element, &[usize]); 6] = [
        ("bot_l.0.weight", F32, &[4, 3]),
        ("bot_l.0.bias", F32, &[4]),
        ("emb_l.0.weight", F32, &[10, 4]),
        ("emb_l.1.weight", F32, &[20, 4]),
        ("top_l.0.weight", F32, &[1, 7]),
        ("top_l.0.bias", F32, &[1]),
    ];
    let cases: [(Change<'_>, &str); 15] = [
        (&[("bot_l.0.bias", None)], "tensor `bot_l.0.bias` is missing"),
        (&[("bot_l.0.weight", None)], "tensor `bot_l.0.weight` is missing"),
        (&[("bot_l.0.weight", None), ("bot_l.0.bias", None)], "the bottom MLP has no layers"),
        (&[("emb_l.0.weight", None)], "tensor `emb_l.0.weight` is missing"),
        (&[("emb_l.0.weight", None), ("emb_l.1.weight", None)], "not a known model"),
        (&[("bot_l.0.bias", Some((F32, &[5])))], "`bot_l.0.bias` is fp32 [5], expected floats [4]"),
        (&[("bot_l.0.weight", Some((F32, &[4])))], "expected a matrix [outputs, inputs]"),
        (
            &[("emb_l.1.weight", Some((I64, &[20, 4])))],
            "`emb_l.1.weight` is int64 [20, 4], expected floats",
        ),
        (&[("emb_l.1.weight", Some((F32, &[20])))], "expected a matrix [rows, dim]"),
        (&[("emb_l.1.weight", Some((F32, &[0, 4])))], "has 0 rows"),
        (
            &[("top_l.0.weight", Some((F32, &[1, 8])))],
            "`top_l.0.weight` takes 8 inputs; with 2 features, dot needs 7, dot-itself needs 10, cat needs 12",
        ),
        (
            &[("emb_l.0.other", Some((F32, &[1])))],
            "tensor `emb_l.0.other` belongs to no known part",
        ),
        (
            &[("v_W_l.0", Some((F32, &[10])))],
            "(--weighted-pooling learned) are not supported; before saving, multiply them into the \
             rows: emb_l[0].weight.data *= v_W_l[0][:, None]",
        ),
        (
            &[
                ("emb_l.0.weight", None),
                ("emb_l.0.weight_q", Some((F32, &[3, 4]))),
                ("emb_l.0.weight_r", Some((F32, &[4, 4]))),
            ],
            "`emb_l.0.weight_q`: quotient-remainder tables (--qr-flag) are not supported",
        ),
        (
            &[("emb_l.1.weight", None), ("emb_l.1.embs.weight", Some((F32, &[20, 2])))],
            "`emb_l.1.embs.weight`: tables of mixed dimensions (--md-flag) are not supported",
        ),
    ];
    let dir = tempfile::tempdir().expect("a directory");
    Import::read(&zeros(dir.path(), &good), &Options::default()).expect("good");
    for (changes, expected) in cases {
        let mut tensors: Vec<_> = good.to_vec();
        for (name, change) in changes {
            tensors.retain(|(n, ..)| n != name);
            tensors.extend(change.map(|(dtype, shape)| (*name, dtype, shape)));
        }
        let checkpoint = zeros(dir.path(), &tensors);
        let error = Import::read(&checkpoint, &Options::default()).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
    let options = Options { tables: Some(vec!["emb_l.2".into()]), ..Options::default() };
    let checkpoint = zeros(dir.path(), &good);
    let error = Import::read(&checkpoint, &options).expect_err("no such table").to_string();
    assert!(error.contains("no table `emb_l.2`; there are emb_l.0, emb_l.1"), "{error}");
    let options = Options { interaction: Some(Interaction::Cat), ..Options::default() };
    let error = Import::read(&checkpoint, &options).expect_err("not cat").to_string();
    let expected = "--interaction cat: `top_l.0.weight` takes 7 inputs, which fits dot; leave out";
    assert!(error.contains(expected), "{error}");
}

/// Three features of three elements: six products and three elements, or nine elements.
#[test]
fn an_interaction_that_shapes_do_not_tell_is_asked_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let checkpoint = zeros(
        dir.path(),
        &[
            ("bot_l.0.weight", Element::F32, &[3, 2]),
            ("bot_l.0.bias", Element::F32, &[3]),
            ("emb_l.0.weight", Element::F32, &[10, 3]),
            ("emb_l.1.weight", Element::F32, &[20, 3]),
            ("top_l.0.weight", Element::F32, &[1, 9]),
            ("top_l.0.bias", Element::F32, &[1]),
        ],
    );
    let error = Import::read(&checkpoint, &Options::default()).expect_err("two fit").to_string();
    let expected = "fits dot-itself and cat; say which with --interaction dot-itself or cat";
    assert!(error.contains(expected), "{error}");
    for interaction in [Interaction::DotItself, Interaction::Cat] {
        let options = Options { interaction: Some(interaction), ..Options::default() };
        let import = Import::read(&checkpoint, &options).expect("as said");
        assert_eq!(import.spec.interaction, interaction);
    }
}

#[test]
fn projections_of_impossible_sizes() {
    let mut spec = shape(Dtype::F32, Interaction::Cat).spec("small");
    spec.projection = Some(Projection { left: vec![68, 34], right: vec![68, 9, 17] });
    assert!(spec.check().expect_err("cat").contains("is for interaction = \"projection\" only"));
    spec.interaction = Interaction::Projection;
    spec.top[0] = 17 + 2;
    spec.check().expect("two products");
    for (left, told) in [
        (vec![67, 34], "must begin with 68"),
        (vec![68, 33], "end with a multiple of 17"),
        (vec![68], "needs at least an input and an output size"),
        (vec![68, 0], "has a layer of 0"),
    ] {
        spec.projection = Some(Projection { left, right: vec![68, 17] });
        let error = spec.check().expect_err(told);
        assert!(error.contains(told), "{error}");
    }
    spec.projection = None;
    assert!(spec.check().expect_err("none").contains("needs [projection] with left and right"));
}

#[test]
fn tables_that_share_nothing() {
    let spec = shape(Dtype::F32, Interaction::Cat).spec("small");
    let sharing = |table: usize, owner: &str| {
        let mut spec = spec.clone();
        spec.tables[table].shares = Some(owner.into());
        spec
    };
    sharing(2, "t0").check().expect("shared");
    assert_eq!(sharing(2, "t0").owner(2), 0);
    for (table, owner) in [(0, "t1"), (1, "t1"), (1, "t9")] {
        let error = sharing(table, owner).check().expect_err(owner);
        assert!(error.contains("no table before it with rows of its own"), "{error}");
    }
    let mut chain = sharing(1, "t0");
    chain.tables[2].shares = Some("t1".into());
    assert!(chain.check().expect_err("a chain").contains("with rows of its own"));
    let mut other = sharing(1, "t0");
    other.tables[1].rows = 7;
    assert!(other.check().expect_err("other rows").contains("differs from it in rows"));
}
