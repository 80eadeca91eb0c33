//! Enums whose values have names, which users write and files keep.

/// Defines an enum with the name of each value. The list of all values, and reading and writing by name, follow from
/// it, so that none can be forgotten. The word in brackets is what messages call a value.
macro_rules! named {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident($what:literal) {
            $($(#[$of_value:meta])* $value:ident = $text:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $name {
            $($(#[$of_value])* $value,)*
        }

        impl $name {
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$value),*];

            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(name: &str) -> Result<Self, String> {
                let found = Self::ALL.into_iter().find(|value| value.name() == name);
                found.ok_or_else(|| $crate::named::unknown($what, name, &Self::ALL.map(Self::name)))
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(crate) use named;

pub(crate) fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    let (last, others) = known.split_last().unwrap_or((&"none", &[]));
    format!("no {what} is named `{name}`; there are {} and {last}", others.join(", "))
}
