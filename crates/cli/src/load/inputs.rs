//! Requests from a model's metadata. Features are drawn; ids are drawn by hotness or read from a file.
//!
//! Ids are laid out as the metadata asks: `values` and `lengths` of all tables, `TABLE.indices` and
//! `TABLE.offsets`, or one matrix [samples, ids of a sample].

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use hither_core::seed;
use hither_data::IdTrace;
use hither_dlrm::generate;
use hither_dlrm::lookups::{Hotness, Lookups, Shape};
use hither_dlrm::model::Spec;
use hither_dlrm::workload::{Reading, Requests, Workload};
use hither_load::describe::{Input, Metadata, Model};
use hither_load::request::{InferRequest, Tensor};
use hither_load::wire::{Protocol, Target};
use rand_distr::{Distribution as _, StandardNormal};

/// Bytes of all prepared requests; they are sent again and again.
const POOL_BYTES: usize = 64 << 20;
const POOL_REQUESTS_MAX: usize = 1 << 16;
/// Fewer different requests would be answered from caches.
const POOL_REQUESTS_MIN: usize = 8;

/// What requests hold.
#[derive(Debug, clap::Args)]
pub struct InputArgs {
    /// File of requests, or a plain list of ids (docs/formats/requests.md) [default: drawn ids]
    #[arg(long, help_heading = "Requests", value_name = "FILE")]
    ids: Option<PathBuf>,
    /// Hotness of drawn ids: one-item, high, medium, low or random
    #[arg(
        long,
        help_heading = "Requests",
        value_name = "CLASS",
        default_value = "medium",
        conflicts_with = "ids"
    )]
    pub hotness: Hotness,
    /// Ids per bag [default: the server's; 1 if it tells none]
    #[arg(long, help_heading = "Requests", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pooling: Option<u32>,
    /// Number of tables, if the server does not tell
    #[arg(long, help_heading = "Requests", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    tables: Option<u32>,
    /// Rows of each table, if the server does not tell
    #[arg(long, help_heading = "Requests", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    rows: Option<u32>,
    /// Take ids of --ids modulo the rows of their table instead of refusing them
    #[arg(long, help_heading = "Requests", requires = "ids")]
    wrap: bool,
    /// Width of ids to send: 32 or 64 bits [default: as the metadata says]
    #[arg(long, help_heading = "Requests", value_name = "BITS", value_parser = ["32", "64"])]
    id_bits: Option<String>,
}

/// What requests turned out to be.
#[derive(Debug)]
pub struct Asked {
    pub model: String,
    pub samples: usize,
    /// Different requests, sent in turn.
    pub requests: usize,
    pub request_bytes: usize,
    /// The ids, in words.
    pub ids: String,
    /// All of it, in words.
    pub told: String,
}

/// How a model takes its ids.
#[derive(Debug, PartialEq)]
enum Form {
    Joined,
    PerTable(Vec<String>),
    /// The name and the ids of a sample.
    Matrix(String, usize),
}

/// What a model takes.
#[derive(Debug, PartialEq)]
struct Layout {
    /// Names and widths of inputs of features.
    dense: Vec<(String, usize)>,
    form: Option<Form>,
    are_ids_long: bool,
}

impl Layout {
    fn new(inputs: &[Input]) -> anyhow::Result<Self> {
        let mut layout = Self { dense: Vec::new(), form: None, are_ids_long: true };
        let mut tables = Vec::new();
        for Input { name, datatype, shape } in inputs {
            let is_id = matches!(datatype.as_str(), "INT64" | "INT32");
            if is_id {
                layout.are_ids_long = datatype == "INT64";
            }
            match (datatype.as_str(), shape.as_slice(), name.as_str()) {
                // Optional: a sum needs no weights.
                ("FP32", [-1], weights) if weights.ends_with("weights") => {}
                ("FP32", [-1, width], _) if *width >= 1 => {
                    layout.dense.push((name.clone(), *width as usize));
                }
                (_, [-1], "values" | "lengths") if is_id => layout.form = Some(Form::Joined),
                (_, [-1], table) if is_id => match table.rsplit_once('.') {
                    Some((table, "indices")) => tables.push(table.to_owned()),
                    Some((_, "offsets")) => {}
                    _ => bail!("cannot tell what ids input `{name}` takes"),
                },
                (_, [-1, width], _) if is_id && *width >= 1 && layout.form.is_none() => {
                    layout.form = Some(Form::Matrix(name.clone(), *width as usize));
                }
                _ => bail!(
                    "input `{name}` is {datatype} {shape:?}; requests can be made of FP32 [-1, n] \
                     features and INT32 or INT64 ids"
                ),
            }
        }
        if !tables.is_empty() {
            layout.form = Some(Form::PerTable(tables));
        }
        Ok(layout)
    }
}

impl InputArgs {
    /// Builds the requests, and tells what they are.
    pub fn requests(
        &self,
        target: &Target,
        model: &Model,
        metadata: &Metadata,
        samples: usize,
        seed: u64,
    ) -> anyhow::Result<(Vec<InferRequest>, Asked)> {
        let mut layout = Layout::new(&metadata.inputs)?;
        if let Some(bits) = &self.id_bits {
            layout.are_ids_long = bits == "64";
        }
        let (rows, pooling) = self.tables(&layout, metadata)?;
        let width: usize = layout.dense.iter().map(|(_, width)| width).sum();
        let id_bytes = if layout.are_ids_long { 8 } else { 4 };
        let per_sample: usize = 4 * width + rows.len() * pooling.max(1) * id_bytes;
        let pool = POOL_BYTES / (per_sample * samples).max(1);
        let batches = pool.clamp(POOL_REQUESTS_MIN, POOL_REQUESTS_MAX);
        let (lookups, dense) = self.lookups(&rows, width, pooling, samples, batches, seed)?;
        let dense = dense.unwrap_or_else(|| {
            let mut stream = seed::stream(seed, "features");
            let count = lookups.len() * samples * width;
            (0..count).map(|_| StandardNormal.sample(&mut stream)).collect()
        });
        let encode = |(k, one): (usize, &Requests)| -> anyhow::Result<InferRequest> {
            let dense = &dense[k * samples * width..][..samples * width];
            let tensors = tensors(&layout, one, dense, samples, width)?;
            Ok(InferRequest::new(target.protocol, model, samples, &tensors))
        };
        let requests: Vec<InferRequest> =
            lookups.batches().iter().enumerate().map(encode).collect::<Result<_, _>>()?;
        let request_bytes = requests[0].bytes();
        let ids = match &self.ids {
            Some(path) => format!("ids of {}", path.display()),
            None => super::hotness_text(self.hotness, (!rows.is_empty()).then_some(pooling)),
        };
        let over = match target.protocol {
            Protocol::Http => "HTTP",
            Protocol::Grpc => "gRPC",
        };
        let told = format!(
            "{} different requests of {samples} samples and {request_bytes} bytes over {over}, {ids}",
            requests.len()
        );
        let name = model.name.clone();
        let count = requests.len();
        Ok((requests, Asked { model: name, samples, requests: count, request_bytes, ids, told }))
    }

    /// Rows of each table and ids per bag: as asked for, or as the server's configuration says.
    fn tables(&self, layout: &Layout, metadata: &Metadata) -> anyhow::Result<(Vec<usize>, usize)> {
        let numbers = |key: &str| -> anyhow::Result<Vec<usize>> {
            let text = metadata.parameters.get(key).map_or("", String::as_str);
            let parts = text.split(',').filter(|part| !part.is_empty());
            let parsed: Result<Vec<usize>, std::num::ParseIntError> =
                parts.map(|part| part.trim().parse()).collect();
            parsed.with_context(|| format!("the server's parameter {key} = `{text}`"))
        };
        let mut rows = numbers("table_rows")?;
        let told = numbers("ids_per_bag")?;
        let pooling = self.pooling.map(|pooling| pooling as usize);
        let pooling = pooling.or(told.first().copied());
        let count = match &layout.form {
            None => return Ok((Vec::new(), 1)),
            Some(Form::PerTable(tables)) => tables.len(),
            Some(Form::Matrix(_, width)) => match (self.tables, pooling, rows.len()) {
                (Some(tables), ..) => tables as usize,
                (None, Some(pooling), _) => width / pooling.max(1),
                (None, None, 0) => *width,
                (None, None, tables) => tables,
            },
            Some(Form::Joined) => self.tables.map_or(rows.len(), |tables| tables as usize),
        };
        let pooling = match &layout.form {
            Some(Form::Matrix(name, width)) => {
                if width % count != 0 || pooling.is_some_and(|pooling| pooling * count != *width) {
                    bail!(
                        "input `{name}` has {width} ids per sample, which {count} tables do not share evenly"
                    );
                }
                width / count
            }
            _ => pooling.unwrap_or(1),
        };
        if let Some(all) = self.rows {
            rows = vec![all as usize; count];
        }
        match rows.len() {
            0 => bail!(
                "the server does not tell the rows of its tables; give --rows, and --tables or --pooling"
            ),
            told if told != count => {
                bail!("the server tells the rows of {told} tables, but its inputs take {count}")
            }
            _ => {}
        }
        Ok((rows, pooling))
    }

    /// The ids of each request, and features where a file has them.
    fn lookups(
        &self,
        rows: &[usize],
        width: usize,
        pooling: usize,
        samples: usize,
        batches: usize,
        seed: u64,
    ) -> anyhow::Result<(Lookups, Option<Vec<f32>>)> {
        let Some(path) = &self.ids else {
            let shape = Shape { batches, batch: samples, pooling };
            return Ok((Lookups::draw(self.hotness, rows, shape, seed), None));
        };
        let spec = spec(rows, width)?;
        let trace = IdTrace::read(path, &spec.columns())?;
        let about = || format!("{}", path.display());
        let reading = Reading { batch: Some(samples), pooling, wrap: self.wrap };
        let workload = Workload::new(&trace, &spec, reading).with_context(about)?;
        workload.check_ids().with_context(about)?;
        let lookups = Lookups::from_workload(&workload, batches);
        let dense = workload.dense(0..samples * lookups.len()).map(Into::into);
        Ok((lookups, dense))
    }
}

/// A model of these tables, which a file of requests is read for.
fn spec(rows: &[usize], width: usize) -> anyhow::Result<Spec> {
    let mut shape = generate::Shape::preset("mlperf")?;
    shape.tables = rows.len();
    shape.bottom[0] = width;
    let mut spec = shape.spec("requests");
    for (table, rows) in spec.tables.iter_mut().zip(rows) {
        table.rows = *rows;
    }
    Ok(spec)
}

fn tensors(
    layout: &Layout,
    one: &Requests,
    dense: &[f32],
    samples: usize,
    width: usize,
) -> anyhow::Result<Vec<Tensor>> {
    let mut tensors = Vec::new();
    let mut start = 0;
    for (name, own) in &layout.dense {
        let rows = dense.chunks_exact(width.max(1)).flat_map(|row| &row[start..start + own]);
        let data: Vec<u8> = rows.flat_map(|value| value.to_le_bytes()).collect();
        let shape = vec![samples as i64, *own as i64];
        tensors.push(Tensor { name: name.clone(), datatype: "FP32", shape, data: data.into() });
        start += own;
    }
    let numbers = |name: &str, shape: Vec<i64>, values: &mut dyn Iterator<Item = i64>| {
        let (datatype, data): (_, Vec<u8>) = match layout.are_ids_long {
            true => ("INT64", values.flat_map(i64::to_le_bytes).collect()),
            false => ("INT32", values.flat_map(|value| (value as i32).to_le_bytes()).collect()),
        };
        Tensor { name: name.into(), datatype, shape, data: data.into() }
    };
    let bag = |bag: usize| &one.ids[one.offsets[bag] as usize..one.offsets[bag + 1] as usize];
    match &layout.form {
        None => {}
        Some(Form::Joined) => {
            let ids = one.ids.len() as i64;
            tensors.push(numbers("values", vec![ids], &mut one.ids.iter().copied()));
            let mut lengths = one.offsets.windows(2).map(|pair| pair[1] - pair[0]);
            let bags = one.offsets.len() as i64 - 1;
            tensors.push(numbers("lengths", vec![bags], &mut lengths));
        }
        Some(Form::PerTable(tables)) => {
            for (t, table) in tables.iter().enumerate() {
                let offsets = &one.offsets[t * samples..=(t + 1) * samples];
                let ids = &one.ids[offsets[0] as usize..offsets[samples] as usize];
                let indices = format!("{table}.indices");
                let count = ids.len() as i64;
                tensors.push(numbers(&indices, vec![count], &mut ids.iter().copied()));
                let mut own = offsets.iter().map(|offset| offset - offsets[0]);
                let count = offsets.len() as i64;
                tensors.push(numbers(&format!("{table}.offsets"), vec![count], &mut own));
            }
        }
        Some(Form::Matrix(name, ids)) => {
            let tables = (one.offsets.len() - 1) / samples;
            let mut row = Vec::with_capacity(samples * ids);
            for sample in 0..samples {
                (0..tables).for_each(|t| row.extend(bag(t * samples + sample)));
            }
            if row.len() != samples * ids {
                bail!("input `{name}` takes {ids} ids per sample; the file's bags have others");
            }
            let shape = vec![samples as i64, *ids as i64];
            tensors.push(numbers(name, shape, &mut row.into_iter()));
        }
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(name: &str, datatype: &str, shape: &[i64]) -> Input {
        Input { name: name.into(), datatype: datatype.into(), shape: shape.into() }
    }

    fn values(tensor: &Tensor) -> Vec<i64> {
        let long = tensor.data.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()));
        long.collect()
    }

    /// Two tables, two samples; table 0 has bags [1], [2, 3], table 1 has [], [4].
    fn lists() -> Requests {
        Requests { ids: vec![1, 2, 3, 4], offsets: vec![0, 1, 3, 3, 4], weights: None }
    }

    #[test]
    fn ids_are_laid_out_as_the_metadata_asks() {
        let dense = [0.5, 1.5];
        let joined = Layout::new(&[
            input("dense", "FP32", &[-1, 1]),
            input("values", "INT64", &[-1]),
            input("lengths", "INT64", &[-1]),
            input("weights", "FP32", &[-1]),
        ]);
        let made = tensors(&joined.unwrap(), &lists(), &dense, 2, 1).unwrap();
        assert_eq!(made[0].shape, [2, 1]);
        assert_eq!(values(&made[1]), [1, 2, 3, 4]);
        assert_eq!(values(&made[2]), [1, 2, 0, 1]);

        let per_table = Layout::new(&[
            input("dense", "FP32", &[-1, 1]),
            input("a.b.indices", "INT64", &[-1]),
            input("a.b.offsets", "INT64", &[-1]),
            input("c.indices", "INT64", &[-1]),
            input("c.offsets", "INT64", &[-1]),
        ]);
        let made = tensors(&per_table.unwrap(), &lists(), &dense, 2, 1).unwrap();
        assert_eq!(made[1].name, "a.b.indices");
        assert_eq!(values(&made[1]), [1, 2, 3]);
        assert_eq!(values(&made[4]), [0, 0, 1], "offsets begin at zero in every table");

        let matrix =
            Layout::new(&[input("dense", "FP32", &[-1, 1]), input("ids", "INT64", &[-1, 2])]);
        let regular =
            Requests { ids: vec![1, 2, 3, 4], offsets: vec![0, 1, 2, 3, 4], weights: None };
        let made = tensors(&matrix.unwrap(), &regular, &dense, 2, 1).unwrap();
        assert_eq!(values(&made[1]), [1, 3, 2, 4], "sample by sample");
    }

    #[test]
    fn inputs_that_cannot_be_made_are_refused() {
        for bad in [
            input("text", "BYTES", &[-1, 1]),
            input("image", "FP32", &[-1, 3, 224, 224]),
            input("ids", "INT64", &[-1]),
        ] {
            assert!(Layout::new(std::slice::from_ref(&bad)).is_err(), "{bad:?}");
        }
    }
}
