//! Text tables: lines with their numbers, columns by name, fields with checked values.
//!
//! One line is one row, so that a line number in an error is the one that an editor shows; a
//! quoted field may hold the separator but no line break.

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

/// A table with a header line, of which `N` columns are wanted.
pub(crate) struct Table<'a, const N: usize> {
    source: Source<'a>,
    header_line: u64,
    width: usize,
    names: [&'static str; N],
    indices: [Option<usize>; N],
}

impl<'a, const N: usize> Table<'a, N> {
    /// The first `required` of `names` must be there; the others may be absent and then read as
    /// empty. Columns may stand in any order; others than the wanted ones are ignored unless
    /// `strict`.
    pub fn open(
        source: Source<'a>,
        names: [&'static str; N],
        required: usize,
        strict: bool,
    ) -> Result<Self, Error> {
        let (header_line, line) = source.lines().next().ok_or_else(|| {
            source.error(format!("a header line with {}", names.join(","))).found("")
        })?;
        let header = split(line, ',').ok_or_else(|| unclosed(source, header_line, line))?;
        let mut indices = [None; N];
        for (index, cell) in header.iter().enumerate() {
            let Some(wanted) = names.iter().position(|name| *name == &**cell) else {
                if strict {
                    return Err(source
                        .error(format!("one of the columns {}", names.join(",")))
                        .at(header_line)
                        .found(cell));
                }
                continue;
            };
            if indices[wanted].replace(index).is_some() {
                return Err(source.error("each column once").at(header_line).found(cell));
            }
        }
        if let Some(missing) = (0..required).find(|&i| indices[i].is_none()) {
            return Err(source
                .error(format!("a column {} in the header", names[missing]))
                .at(header_line)
                .found(line));
        }
        Ok(Self { source, header_line, width: header.len(), names, indices })
    }

    /// The wanted fields of every row after the header, in the order of the names.
    pub fn rows(&self) -> impl Iterator<Item = Result<(u64, [Field<'a>; N]), Error>> {
        let source = self.source;
        source.lines().skip_while(|&(line, _)| line <= self.header_line).map(move |(line, text)| {
            let cells = split(text, ',').ok_or_else(|| unclosed(source, line, text))?;
            if cells.len() != self.width {
                return Err(width_error(source, line, cells.len(), self.width));
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

pub(crate) fn width_error(source: Source<'_>, line: u64, found: usize, width: usize) -> Error {
    source.error(format!("{width} columns")).at(line).found(&format!("{found} columns"))
}

fn unclosed(source: Source<'_>, line: u64, text: &str) -> Error {
    source.error("a closing quote at the end of a quoted field").at(line).found(text)
}

/// The fields of a line; none if a quoted field does not end. A doubled quote stands for one.
pub(crate) fn split(line: &str, separator: char) -> Option<Vec<Cow<'_, str>>> {
    if !line.contains('"') {
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

/// One value of a row, with all that an error about it needs.
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
