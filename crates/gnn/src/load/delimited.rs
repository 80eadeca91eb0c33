//! Tables of text with commas, and quotes where a field has some, with the line in every message.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::{Path, PathBuf};

use super::text::{integer, reader, shown};
use crate::dataset::UNLABELLED;
use crate::{Error, Labels};

pub struct Records {
    path: PathBuf,
    reader: csv::Reader<Box<dyn BufRead>>,
    record: csv::ByteRecord,
}

impl Records {
    pub fn open(path: &Path) -> Result<Self, Error> {
        let reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .trim(csv::Trim::All)
            .from_reader(reader(path)?);
        Ok(Self { path: path.into(), reader, record: csv::ByteRecord::new() })
    }

    /// The next row; blank lines are none.
    pub fn next(&mut self) -> Result<Option<Record<'_>>, Error> {
        match self.reader.read_byte_record(&mut self.record) {
            Ok(true) => Ok(Some(Record { path: &self.path, fields: &self.record })),
            Ok(false) => Ok(None),
            Err(error) => {
                let line = error.position().map_or(0, csv::Position::line);
                Err(Error::Line { path: self.path.clone(), line, problem: error.to_string() })
            }
        }
    }

    /// The names of the columns, in lower case.
    pub fn header(&mut self) -> Result<Vec<String>, Error> {
        let empty = Error::Line {
            path: self.path.clone(),
            line: 1,
            problem: "it is empty; expected the names of its columns".into(),
        };
        let record = self.next()?.ok_or(empty)?;
        Ok(record.names())
    }
}

#[derive(Clone, Copy)]
pub struct Record<'a> {
    path: &'a Path,
    fields: &'a csv::ByteRecord,
}

impl<'a> Record<'a> {
    pub fn bad(&self, problem: impl Into<String>) -> Error {
        let line = self.fields.position().map_or(0, csv::Position::line);
        Error::Line { path: self.path.into(), line, problem: problem.into() }
    }

    pub fn len(&self) -> usize {
        self.fields.len()
    }

    pub fn names(&self) -> Vec<String> {
        self.fields.iter().map(|name| shown(name).to_lowercase()).collect()
    }

    pub fn get(&self, column: usize) -> Result<&'a str, Error> {
        let field = self.fields.get(column).ok_or_else(|| {
            let (found, column) = (self.fields.len(), column + 1);
            self.bad(format!("{found} columns; expected at least {column}"))
        })?;
        std::str::from_utf8(field)
            .map_err(|_| self.bad(format!("column {} is no UTF-8", column + 1)))
    }

    /// A number from 0 to below `limit`, which counts `what`.
    pub fn id(&self, column: usize, limit: usize, what: &str) -> Result<u32, Error> {
        let field = self.get(column)?;
        let number = integer(field.as_bytes()).and_then(|number| usize::try_from(number).ok());
        number.filter(|number| *number < limit).map(|number| number as u32).ok_or_else(|| {
            let field = shown(field.as_bytes());
            self.bad(format!("`{field}`: expected {what} from 0 to below {limit}"))
        })
    }
}

/// Classes in the order of their names, by value where all are integers; the empty name stands
/// for none.
pub fn classes_by_name(of: &[String]) -> Labels {
    let all_integers = of.iter().all(|name| name.is_empty() || integer(name.as_bytes()).is_some());
    let key = |name: &str| {
        let value = if all_integers { integer(name.as_bytes()).unwrap_or(0) } else { 0 };
        (value, name.to_string())
    };
    let named = of.iter().filter(|name| !name.is_empty());
    let mut numbers: BTreeMap<(i64, String), u32> = named.map(|name| (key(name), 0)).collect();
    for (number, (_, value)) in numbers.iter_mut().enumerate() {
        *value = number as u32;
    }
    let class = |name: &String| numbers.get(&key(name)).copied().unwrap_or(UNLABELLED);
    let of: Vec<u32> = of.iter().map(class).collect();
    Labels::Classes { of: of.into(), count: numbers.len() }
}
