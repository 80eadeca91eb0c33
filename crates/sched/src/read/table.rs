//! Text tables: lines with their numbers, columns by name, fields with checked values.
//!
//! One line is one row, so line numbers in errors are those of an editor. A quoted field may hold the
//! separator but no line break.

use std::borrow::Cow;

use super::Error;

pub(crate) const GPUS_MAX: u64 = 1_000_000;
pub(crate) const TIME_MAX_S: f64 = 1e10;
pub(crate) const ITERATIONS_MAX: f64 = 1e15;
/// Below this a duration or a count of work is taken for a mistake.
pub(crate) const TINY: f64 = 1e-9;
const NAME_MAX: usize = 200;

/// A file's text, known to be UTF-8, without a byte order mark.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub file: &'a str,
    pub text: &'a str,
}

impl<'a> Source<'a> {
    pub fn new(bytes: &'a [u8], file: &'a str) -> Result<Self, Error> {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            let line = 1 + before.iter().filter(|&&b| b == b'\n').count() as u64;
            Error::new(file, "text in UTF-8").at(line).hint("is this a compressed or binary file?")
        })?;
        Ok(Self { file, text: text.strip_prefix('\u{feff}').unwrap_or(text) })
    }

    /// Lines that are not blank, counted from 1, without their line ends.
    pub fn lines(self) -> impl Iterator<Item = (u64, &'a str)> {
        (1..)
            .zip(self.text.split('\n'))
            .map(|(number, line)| (number, line.strip_suffix('\r').unwrap_or(line)))
            .filter(|(_, line)| !line.trim().is_empty())
    }

    pub fn error(self, expected: impl Into<Box<str>>) -> Error {
        Error::new(self.file, expected)
    }
}

/// How a reader treats columns that it does not want.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    Refuse,
    /// Unless one looks like a misspelt column that is wanted and absent.
    Ignore,
}

/// A table of which `N` columns are wanted, by name and in any order.
pub(crate) struct Table<'a, const N: usize> {
    source: Source<'a>,
    /// 0 where the names come from elsewhere.
    header_line: u64,
    separator: char,
    header: Vec<Cow<'a, str>>,
    names: [&'static str; N],
    indices: [Option<usize>; N],
}

impl<'a, const N: usize> Table<'a, N> {
    /// A table whose first line names its columns. The first `required` of `names` must be there;
    /// the others may be absent and then read as empty.
    pub fn open(
        source: Source<'a>,
        names: [&'static str; N],
        required: usize,
        others: Others,
    ) -> Result<Self, Error> {
        Self::separated(source, ',', names, required, others)
    }

    /// As [`Table::open`], with another separator than a comma.
    pub fn separated(
        source: Source<'a>,
        separator: char,
        names: [&'static str; N],
        required: usize,
        others: Others,
    ) -> Result<Self, Error> {
        let (header_line, line) = source.lines().next().ok_or_else(|| {
            Error::about(source.file, "is empty")
                .hint(format!("a header with {} is needed", names[..required].join(",")))
        })?;
        let header = split(line, separator).ok_or_else(|| unclosed(source, header_line, line))?;
        Self::with_header(source, header_line, separator, header, names, required, others)
    }

    /// A table without a header line, whose columns are known from elsewhere.
    pub fn headless(
        source: Source<'a>,
        header: Vec<Cow<'a, str>>,
        names: [&'static str; N],
        required: usize,
    ) -> Result<Self, Error> {
        Self::with_header(source, 0, ',', header, names, required, Others::Ignore)
    }

    fn with_header(
        source: Source<'a>,
        header_line: u64,
        separator: char,
        header: Vec<Cow<'a, str>>,
        names: [&'static str; N],
        required: usize,
        others: Others,
    ) -> Result<Self, Error> {
        let mut indices = [None; N];
        let mut unknown = Vec::new();
        for (index, cell) in header.iter().enumerate() {
            match names.iter().position(|name| name.eq_ignore_ascii_case(cell)) {
                Some(wanted) => {
                    if indices[wanted].replace(index).is_some() {
                        return Err(source.error("each column once").at(header_line).found(cell));
                    }
                }
                None => unknown.push(&**cell),
            }
        }
        let table = Self { source, header_line, separator, header: header.clone(), names, indices };
        for at in (0..N).filter(|&at| indices[at].is_none()) {
            let near = unknown.iter().find(|cell| is_near(names[at], cell));
            if at < required || near.is_some() {
                let error = table.missing(names[at]);
                return Err(match near {
                    Some(cell) => error.hint(format!("is {cell} a misspelling of it?")),
                    None => error,
                });
            }
        }
        if let Some(cell) = unknown.first().filter(|_| others == Others::Refuse) {
            return Err(source
                .error(format!("one of the columns {}", names.join(",")))
                .at(header_line)
                .found(cell));
        }
        Ok(table)
    }

    /// Whether the table has the column at this index of the names.
    pub fn has(&self, at: usize) -> bool {
        self.indices[at].is_some()
    }

    /// An error that names what is missing and lists what is there.
    pub fn missing(&self, what: &str) -> Error {
        let states =
            format!("the column {what} is missing; the columns are {}", self.header.join(", "));
        let error = Error::about(self.source.file, states);
        if self.header_line > 0 { error.at(self.header_line) } else { error }
    }

    /// The wanted fields of every row after the header, in the order of the names.
    pub fn rows(&self) -> impl Iterator<Item = Result<(u64, [Field<'a>; N]), Error>> {
        let source = self.source;
        source.lines().skip_while(|&(line, _)| line <= self.header_line).map(move |(line, text)| {
            let cells = split(text, self.separator).ok_or_else(|| unclosed(source, line, text))?;
            if cells.len() != self.header.len() {
                return Err(width_error(source, line, cells.len(), self.header.len()));
            }
            let fields = std::array::from_fn(|i| Field {
                file: source.file,
                line,
                column: self.names[i],
                text: self.indices[i].map_or(Cow::Borrowed(""), |index| cells[index].clone()),
            });
            Ok((line, fields))
        })
    }
}

/// Whether a column's name may be a slip of the wanted one: at most two letters differ, one in
/// short names. Case, blanks and underscores do not count.
fn is_near(wanted: &str, found: &str) -> bool {
    let letters = |text: &str| -> Vec<char> {
        text.chars().filter(|c| !" _-".contains(*c)).flat_map(char::to_lowercase).collect()
    };
    let (wanted, found) = (letters(wanted), letters(found));
    let slips = if wanted.len() < 6 { 1 } else { 2 };
    if wanted.len() < 3 || wanted.len().abs_diff(found.len()) > slips {
        return false;
    }
    let mut row: Vec<usize> = (0..=found.len()).collect();
    for (i, a) in wanted.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in found.iter().enumerate() {
            let change = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[found.len()] <= slips
}

pub(crate) fn width_error(source: Source<'_>, line: u64, found: usize, width: usize) -> Error {
    source.error(format!("{width} columns")).at(line).found(&format!("{found} columns"))
}

fn unclosed(source: Source<'_>, line: u64, text: &str) -> Error {
    source.error("a closing quote at the end of a quoted field").at(line).found(text)
}

/// The fields of a line; none if a quoted field does not end. A doubled quote stands for one. Between
/// bars a quote is a character like any other, as Slurm writes them.
pub(crate) fn split(line: &str, separator: char) -> Option<Vec<Cow<'_, str>>> {
    if separator == '|' || !line.contains('"') {
        return Some(line.split(separator).map(|cell| Cow::Borrowed(cell.trim())).collect());
    }
    let mut cells = Vec::new();
    let mut rest = line;
    loop {
        if let Some(mut quoted) = rest.trim_start().strip_prefix('"') {
            let mut cell = String::new();
            loop {
                let end = quoted.find('"')?;
                cell.push_str(&quoted[..end]);
                quoted = &quoted[end + 1..];
                match quoted.strip_prefix('"') {
                    Some(more) => {
                        cell.push('"');
                        quoted = more;
                    }
                    None => break,
                }
            }
            cells.push(Cow::Owned(cell));
            let after = quoted.trim_start();
            if after.is_empty() {
                return Some(cells);
            }
            rest = after.strip_prefix(separator)?;
        } else {
            let Some((cell, more)) = rest.split_once(separator) else {
                cells.push(Cow::Borrowed(rest.trim()));
                return Some(cells);
            };
            cells.push(Cow::Borrowed(cell.trim()));
            rest = more;
        }
    }
}

/// Quotes a field where reading it back needs that. A line break cannot be kept.
pub(crate) fn quote(text: &str) -> Cow<'_, str> {
    if text.contains(['\n', '\r']) {
        return Cow::Owned(quote(&text.replace(['\n', '\r'], " ")).into_owned());
    }
    if text.contains([',', '"']) || text.trim().len() != text.len() {
        return Cow::Owned(format!("\"{}\"", text.replace('"', "\"\"")));
    }
    Cow::Borrowed(text)
}

/// One value of a row, with everything that an error about it needs.
#[derive(Clone)]
pub(crate) struct Field<'a> {
    pub file: &'a str,
    pub line: u64,
    pub column: &'a str,
    pub text: Cow<'a, str>,
}

impl Field<'_> {
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    pub fn error(&self, expected: impl Into<Box<str>>) -> Error {
        Error::new(self.file, expected).at(self.line).column(self.column).found(&self.text)
    }

    /// A finite number within bounds, both included.
    pub fn number(&self, min: f64, max: f64) -> Result<f64, Error> {
        match self.text.parse::<f64>() {
            Ok(value) if value >= min && value <= max => Ok(value),
            _ => Err(self.error(format!("a number from {min} to {max}"))),
        }
    }

    /// A whole number within bounds, both included; `8.0` counts as whole.
    pub fn whole(&self, min: u64, max: u64) -> Result<u64, Error> {
        let value = self.text.parse::<u64>().ok().or_else(|| {
            let value = self.text.parse::<f64>().ok()?;
            (value.fract() == 0.0 && (0.0..=9e15).contains(&value)).then_some(value as u64)
        });
        match value {
            Some(value) if (min..=max).contains(&value) => Ok(value),
            _ => Err(self.error(format!("a whole number from {min} to {max}"))),
        }
    }

    pub fn gpus(&self) -> Result<u32, Error> {
        self.whole(1, GPUS_MAX).map(|gpus| gpus as u32)
    }

    pub fn seconds(&self) -> Result<f64, Error> {
        self.number(0.0, TIME_MAX_S)
    }

    pub fn duration_s(&self) -> Result<f64, Error> {
        self.number(TINY, TIME_MAX_S)
    }

    pub fn iterations(&self) -> Result<f64, Error> {
        self.number(TINY, ITERATIONS_MAX)
    }

    /// A name of printable characters.
    pub fn name(&self) -> Result<String, Error> {
        if self.is_empty() {
            return Err(self.error("a name"));
        }
        self.name_or_empty()
    }

    pub fn name_or_empty(&self) -> Result<String, Error> {
        if self.text.len() > NAME_MAX || self.text.contains(char::is_control) {
            return Err(self
                .error(format!("a name of at most {NAME_MAX} bytes without control characters")));
        }
        Ok(self.text.clone().into_owned())
    }
}
