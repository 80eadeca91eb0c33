//! Samples line by line: CSV and JSON lines. Both are read as a stream, so that a file of any size
//! takes the memory of the samples that are asked for at once.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::Error;
use crate::ids::{Columns, Dense, IdTrace, is_text};

/// Longer lines indicate a file of another kind.
const LINE_MAX: u64 = 64 << 20;
const BUFFER_BYTES: usize = 1 << 18;
/// Enough of a file to tell its format, with a header of many columns.
const START: usize = 1 << 16;

/// How a text file holds samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Csv,
    JsonLines,
}

impl Format {
    /// The format of a file by how it starts; `None` for tensors and for plain lists of ids.
    pub fn detect(path: &Path, start: &[u8]) -> Option<Self> {
        if !is_text(start) {
            return None;
        }
        let start = &start[..start.len().min(START)];
        let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
        let first_line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let is_csv =
            |e: &std::ffi::OsStr| e.eq_ignore_ascii_case("csv") || e.eq_ignore_ascii_case("tsv");
        if text.starts_with(b"{") {
            return Some(Self::JsonLines);
        }
        let comma = first_line.contains(&b',') && !first_line.starts_with(b"#");
        (comma || path.extension().is_some_and(is_csv)).then_some(Self::Csv)
    }
}

/// Samples that were read together, and the line on which each of them begins.
#[derive(Clone, Debug)]
pub struct Block {
    pub trace: IdTrace,
    pub lines: Vec<usize>,
}

/// A file of lines that is read from front to back.
pub struct SampleReader {
    path: PathBuf,
    columns: Columns,
    input: Input,
    /// Lines and bytes read so far.
    line: usize,
    bytes: u64,
    /// The header of a CSV file; `None` for JSON lines.
    header: Option<Header>,
    /// Whether samples have dense features and weights: the first sample decides for all.
    has_dense: Option<bool>,
    has_weights: Option<bool>,
    ignored: BTreeSet<String>,
}

type Input = Box<dyn BufRead + Send>;

/// Which field of a CSV record is what.
struct Header {
    delimiter: char,
    fields: usize,
    dense: Vec<usize>,
    tables: Vec<usize>,
}

impl SampleReader {
    pub fn open(path: &Path, format: Format, columns: &Columns) -> Result<Self, Error> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let input = Box::new(BufReader::with_capacity(BUFFER_BYTES, file));
        Self::new(path, format, input, columns)
    }

    /// Reads from any stream; `path` is what messages call it.
    pub fn new(
        path: &Path,
        format: Format,
        input: Input,
        columns: &Columns,
    ) -> Result<Self, Error> {
        let mut reader = Self {
            path: path.into(),
            columns: columns.clone(),
            input,
            line: 0,
            bytes: 0,
            header: None,
            has_dense: None,
            has_weights: None,
            ignored: BTreeSet::new(),
        };
        if format == Format::Csv {
            reader.read_header()?;
        }
        Ok(reader)
    }

    /// How far the file was read.
    pub fn bytes_read(&self) -> u64 {
        self.bytes
    }

    /// Up to `count` further samples; `None` at the end of the file.
    pub fn read(&mut self, count: usize) -> Result<Option<Block>, Error> {
        let mut samples = Samples { offsets: vec![0], ..Samples::default() };
        while samples.lines.len() < count && self.read_one(&mut samples)? {}
        if samples.lines.is_empty() {
            return Ok(None);
        }
        let rows = samples.lines.len();
        let values = samples.dense;
        let width = self.columns.dense;
        let trace = IdTrace {
            ids: samples.ids,
            offsets: Some(samples.offsets),
            by_sample: true,
            tables: Some(self.columns.tables.len()),
            batch: None,
            weights: (self.has_weights == Some(true)).then_some(samples.weights),
            dense: (self.has_dense == Some(true)).then_some(Dense { rows, width, values }),
            ignored: self.ignored.iter().cloned().collect(),
        };
        Ok(Some(Block { trace, lines: samples.lines }))
    }

    /// Adds one sample; false at the end of the file.
    fn read_one(&mut self, samples: &mut Samples) -> Result<bool, Error> {
        let Some(text) = self.next_line()? else { return Ok(false) };
        let added = match &self.header {
            Some(header) => samples.add_record(&text, header, &self.columns),
            None => self.add_json(&text, samples),
        };
        added.map_err(|problem| self.bad(problem))?;
        samples.lines.push(self.line);
        Ok(true)
    }

    /// The next line that is not blank, without its end.
    fn next_line(&mut self) -> Result<Option<String>, Error> {
        loop {
            let mut text = Vec::new();
            let read = (&mut self.input).take(LINE_MAX + 1).read_until(b'\n', &mut text);
            let read = read.map_err(Error::io("read", &self.path))?;
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            self.bytes += read as u64;
            if read as u64 > LINE_MAX {
                return Err(self.bad(format!("the line is longer than {} MiB", LINE_MAX >> 20)));
            }
            let mut text = String::from_utf8(text)
                .map_err(|_| self.bad("the line is not text in UTF-8".into()))?;
            if self.line == 1 && text.starts_with('\u{feff}') {
                text.remove(0);
            }
            text.truncate(text.trim_end_matches(['\r', '\n']).len());
            if !text.trim().is_empty() {
                return Ok(Some(text));
            }
        }
    }

    fn bad(&self, problem: String) -> Error {
        Error::TraceLine { path: self.path.clone(), line: self.line, problem }
    }

    fn add_json(&mut self, text: &str, samples: &mut Samples) -> Result<(), String> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| format!("not a JSON object on one line: {error}"))?;
        let parsed = samples.add_json(value, &self.columns, &mut self.ignored)?;
        for (name, had, has) in [
            ("dense", self.has_dense, parsed.has_dense),
            ("weights", self.has_weights, parsed.has_weights),
        ] {
            if had.is_some_and(|had| had != has) {
                let (now, before) = if has { ("has", "lack") } else { ("lacks", "have") };
                return Err(format!("the sample {now} `{name}`, and those above {before} it"));
            }
        }
        (self.has_dense, self.has_weights) = (Some(parsed.has_dense), Some(parsed.has_weights));
        Ok(())
    }

    fn read_header(&mut self) -> Result<(), Error> {
        let Some(text) = self.next_line()? else { return Ok(()) };
        let (header, ignored) =
            Header::new(&text, &self.columns).map_err(|problem| self.bad(problem))?;
        self.has_dense = Some(!header.dense.is_empty());
        self.has_weights = Some(false);
        self.ignored.extend(ignored);
        self.header = Some(header);
        Ok(())
    }
}

/// The fields of a CSV line. One that begins with a quote ends with a quote, and a quote inside of
/// it is doubled.
fn fields(line: &str, delimiter: char) -> Vec<String> {
    let mut fields = vec![String::new()];
    let (mut quoted, mut chars) = (false, line.chars().peekable());
    while let Some(c) = chars.next() {
        let field = fields.last_mut().expect("there is one");
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => field.extend(chars.next()),
            '"' if quoted || field.is_empty() => quoted = !quoted,
            c if c == delimiter && !quoted => fields.push(String::new()),
            c => field.push(c),
        }
    }
    fields
}

impl Header {
    /// The header of a CSV file, and the names of the columns that mean nothing.
    fn new(line: &str, columns: &Columns) -> Result<(Self, Vec<String>), String> {
        let delimiter = if line.contains('\t') && !line.contains(',') { '\t' } else { ',' };
        let names: Vec<String> =
            fields(line, delimiter).iter().map(|name| name.trim().to_owned()).collect();
        let mut seen = BTreeSet::new();
        if let Some(twice) = names.iter().find(|name| !seen.insert(*name)) {
            return Err(format!("column `{twice}` is there twice"));
        }
        let place = |name: &str| names.iter().position(|other| other == name);
        let table = |name: &String| {
            place(name).ok_or_else(|| {
                format!(
                    "no column is named like table `{name}`; `hither model info` lists the tables"
                )
            })
        };
        let tables = columns.tables.iter().map(table).collect::<Result<Vec<_>, _>>()?;
        let others: Vec<usize> = (0..names.len()).filter(|at| !tables.contains(at)).collect();
        let is_numbered = |name: &str| {
            let number = name.strip_prefix('d').unwrap_or_default();
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        };
        let wanted = columns.dense;
        let (dense, ignored) = if others.iter().any(|at| is_numbered(&names[*at])) {
            let feature = |number: usize| {
                place(&format!("d{number}")).ok_or_else(|| {
                    format!(
                        "column `d{number}` is missing: the model takes {wanted} dense features"
                    )
                })
            };
            let dense = (0..wanted).map(feature).collect::<Result<Vec<_>, _>>()?;
            let rest: Vec<usize> = others.into_iter().filter(|at| !dense.contains(at)).collect();
            if let Some(at) = rest.iter().find(|at| is_numbered(&names[**at])) {
                let name = &names[*at];
                return Err(format!(
                    "column `{name}`: the model takes {wanted} dense features, from d0"
                ));
            }
            (dense, rest)
        } else if others.is_empty() || others.len() == wanted {
            (others, Vec::new())
        } else {
            return Err(format!(
                "{} columns are not named like a table, and the model takes {wanted} dense \
                 features; name those d0, d1, …, and other columns are left out",
                others.len()
            ));
        };
        let ignored = ignored.into_iter().map(|at| names[at].clone()).collect();
        Ok((Self { delimiter, fields: names.len(), dense, tables }, ignored))
    }
}

/// Samples that are being read.
#[derive(Default)]
struct Samples {
    ids: Vec<i64>,
    offsets: Vec<i64>,
    weights: Vec<f32>,
    dense: Vec<f32>,
    lines: Vec<usize>,
}

/// What a sample had beside its ids.
struct Parsed {
    has_dense: bool,
    has_weights: bool,
}

impl Samples {
    fn add_record(&mut self, line: &str, header: &Header, columns: &Columns) -> Result<(), String> {
        let record = fields(line, header.delimiter);
        if record.len() != header.fields {
            let (found, expected) = (record.len(), header.fields);
            return Err(format!("{found} fields; the header has {expected}"));
        }
        for (number, at) in header.dense.iter().enumerate() {
            let text = record[*at].trim();
            let value = text.parse::<f64>().ok().map(|value| value as f32);
            let value = value.filter(|value| value.is_finite());
            self.dense.push(value.ok_or_else(|| not_a_feature(number, &cut(text)))?);
        }
        for (table, at) in columns.tables.iter().zip(&header.tables) {
            let words = record[*at].split(|c: char| c.is_whitespace() || c == '|');
            for word in words.filter(|word| !word.is_empty()) {
                let id = word.parse();
                self.ids.push(
                    id.map_err(|_| not_an_id(table, &cut(word)) + "; separate ids by blanks or |")?,
                );
            }
            self.offsets.push(self.ids.len() as i64);
        }
        Ok(())
    }

    fn add_json(
        &mut self,
        value: Value,
        columns: &Columns,
        ignored: &mut BTreeSet<String>,
    ) -> Result<Parsed, String> {
        let expected = "expected {\"dense\": […], \"ids\": {…}}";
        let Value::Object(sample) = value else { return Err(expected.into()) };
        let known = ["dense", "ids", "weights"];
        ignored.extend(sample.keys().filter(|key| !known.contains(&key.as_str())).cloned());
        let parsed = Parsed {
            has_dense: sample.contains_key("dense"),
            has_weights: sample.contains_key("weights"),
        };
        if let Some(dense) = sample.get("dense") {
            let values = dense.as_array().filter(|values| values.len() == columns.dense);
            let wanted = columns.dense;
            let values =
                values.ok_or_else(|| format!("`dense`: expected a list of {wanted} numbers"))?;
            for (number, value) in values.iter().enumerate() {
                let feature = value.as_f64().map(|value| value as f32).filter(|v| v.is_finite());
                self.dense.push(feature.ok_or_else(|| not_a_feature(number, &cut_value(value)))?);
            }
        }
        let ids = sample.get("ids").ok_or_else(|| format!("`ids` is missing; {expected}"))?;
        let ids = by_table("ids", ids, columns)?;
        let weights = sample.get("weights").map(|weights| by_table("weights", weights, columns));
        let weights = weights.transpose()?;
        for (t, table) in columns.tables.iter().enumerate() {
            let before = self.ids.len();
            for id in items(ids[t]) {
                let found = || not_an_id(table, &cut_value(id));
                self.ids.push(id.as_i64().ok_or_else(found)?);
            }
            self.offsets.push(self.ids.len() as i64);
            let Some(weights) = &weights else { continue };
            let (given, wanted) = (items(weights[t]), self.ids.len() - before);
            if given.len() != wanted {
                return Err(format!("table `{table}`: {} weights for {wanted} ids", given.len()));
            }
            for weight in given {
                let number = weight.as_f64().map(|value| value as f32).filter(|v| v.is_finite());
                let shown = || format!("table `{table}`: {} is not a weight", cut_value(weight));
                self.weights.push(number.ok_or_else(shown)?);
            }
        }
        Ok(parsed)
    }
}

/// One value per table, from an object with the tables' names or a list in their order.
fn by_table<'a>(key: &str, value: &'a Value, columns: &Columns) -> Result<Vec<&'a Value>, String> {
    let tables = &columns.tables;
    match value {
        Value::Array(list) if list.len() == tables.len() => Ok(list.iter().collect()),
        Value::Array(list) => {
            Err(format!("`{key}` has {} lists; the model has {} tables", list.len(), tables.len()))
        }
        Value::Object(named) => {
            if let Some(unknown) = named.keys().find(|name| !tables.contains(name)) {
                return Err(format!("`{key}`: the model has no table `{unknown}`"));
            }
            let get = |table: &String| {
                let missing = || format!("`{key}` has no `{table}`; an empty bag is []");
                named.get(table).ok_or_else(missing)
            };
            tables.iter().map(get).collect()
        }
        _ => Err(format!("`{key}`: expected an object by table, or a list in the tables' order")),
    }
}

/// The members of a list; a single value stands for a list of one.
fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        one => std::slice::from_ref(one),
    }
}

fn not_an_id(table: &str, found: &str) -> String {
    format!("table `{table}`: `{found}` is not an integer id")
}

fn not_a_feature(number: usize, found: &str) -> String {
    format!("dense feature {number}: `{found}` is not a finite number")
}

fn cut(text: &str) -> String {
    text.chars().take(40).collect()
}

fn cut_value(value: &Value) -> String {
    cut(&value.to_string())
}
