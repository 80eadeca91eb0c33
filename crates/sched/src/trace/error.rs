//! One kind of error for everything that is read from outside: where, what was found, what was
//! expected, and what to do about it.

use std::fmt;

/// Boxed strings keep a `Result` small: readers return one for every field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Error {
    /// The display name of the file.
    pub file: Box<str>,
    /// Counted from 1; none where the whole file is meant.
    pub line: Option<u64>,
    /// A column's name, a key, or an entry's name.
    pub column: Option<Box<str>>,
    /// What stood there, shortened and without control characters.
    pub found: Option<Box<str>>,
    pub expected: Box<str>,
    pub hint: Option<Box<str>>,
}

impl Error {
    pub(crate) fn new(file: &str, expected: impl Into<Box<str>>) -> Self {
        Self {
            file: file.into(),
            line: None,
            column: None,
            found: None,
            expected: expected.into(),
            hint: None,
        }
    }

    pub(crate) fn at(mut self, line: u64) -> Self {
        self.line = Some(line);
        self
    }

    pub(crate) fn column(mut self, name: impl Into<Box<str>>) -> Self {
        self.column = Some(name.into());
        self
    }

    pub(crate) fn found(mut self, text: &str) -> Self {
        self.found = Some(printable(text, 60).replace('"', "\\\"").into());
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<Box<str>>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A TOML error, placed at the line that its span names.
    pub(crate) fn toml(file: &str, text: &str, what: &str, error: &toml::de::Error) -> Self {
        let reason = Self::new(file, format!("{what}: {}", error.message().trim_end()));
        match error.span().and_then(|span| text.get(..span.start).zip(text.get(span))) {
            Some((before, found)) => {
                let reason = reason.at(1 + before.matches('\n').count() as u64);
                // A span over several lines says less than its line number does.
                if found.is_empty() || found.contains('\n') { reason } else { reason.found(found) }
            }
            None => reason,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.file, 500))?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        f.write_str(": ")?;
        if let Some(column) = &self.column {
            write!(f, "column {}: ", printable(column, 60))?;
        }
        if let Some(found) = &self.found {
            write!(f, "found \"{found}\", ")?;
        }
        // Messages of the TOML and JSON parsers may quote the file.
        write!(f, "expected {}", printable(&self.expected, 1000))?;
        match &self.hint {
            Some(hint) => write!(f, "; {}", printable(hint, 500)),
            None => Ok(()),
        }
    }
}

/// At most so many characters, control characters escaped: any bytes may end up here.
fn printable(text: &str, limit: usize) -> String {
    let mut shown = String::new();
    for c in text.chars().take(limit) {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    if text.chars().nth(limit).is_some() {
        shown.push('…');
    }
    shown
}
