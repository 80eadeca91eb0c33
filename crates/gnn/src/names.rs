//! The names that files give to nodes and classes, in two flat arrays, so that millions of them
//! are used where they lie in a mapped file.

use std::borrow::Cow;

use hither_data::Array;

/// A list of texts, by index.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// All texts, one behind the other.
    text: Array<u8>,
    /// Where each text ends.
    ends: Array<u64>,
}

impl Names {
    /// Fails unless the ends rise to the length of the text.
    pub fn from_arrays(text: Array<u8>, ends: Array<u64>) -> Result<Self, &'static str> {
        if !ends.is_sorted() || ends.last().copied().unwrap_or(0) != text.len() as u64 {
            return Err("the ends of the names do not rise to the length of their text");
        }
        Ok(Self { text, ends })
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The name at this index, which must be below `len`. Bytes that are not UTF-8 are replaced.
    pub fn get(&self, index: usize) -> Cow<'_, str> {
        String::from_utf8_lossy(self.bytes(index))
    }

    /// The bytes of a name.
    pub fn bytes(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.text[start as usize..self.ends[index] as usize]
    }

    pub fn iter(&self) -> impl Iterator<Item = Cow<'_, str>> {
        (0..self.len()).map(|index| self.get(index))
    }

    pub fn text(&self) -> &[u8] {
        &self.text
    }

    pub fn ends(&self) -> &[u64] {
        &self.ends
    }
}

impl<T: AsRef<str>> FromIterator<T> for Names {
    fn from_iter<I: IntoIterator<Item = T>>(names: I) -> Self {
        let (mut text, mut ends) = (vec![], vec![]);
        for name in names {
            text.extend(name.as_ref().as_bytes());
            ends.push(text.len() as u64);
        }
        Self { text: text.into(), ends: ends.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::Names;

    #[test]
    fn names_come_back_and_wrong_ends_are_refused() {
        let names: Names = ["a", "", "Zürich"].iter().collect();
        assert_eq!(names.iter().collect::<Vec<_>>(), ["a", "", "Zürich"]);
        let ends = |ends: Vec<u64>| Names::from_arrays(b"abc".to_vec().into(), ends.into());
        assert_eq!(ends(vec![1, 3]).expect("whole").get(1), "bc");
        for wrong in [vec![], vec![2], vec![3, 1], vec![1, 4]] {
            assert!(ends(wrong).is_err());
        }
    }
}
