//! Arithmetic: instructions that read and write registers only. All 32 lanes are computed; the caller
//! keeps those of active lanes.

use std::array::from_fn;

use crate::Fault;
use crate::parse::{Instruction, Operand, PT, Part, RZ, URZ};
use crate::warp::{LANES, Lanes, Warp};

/// What an instruction writes.
pub enum Written {
    Register(u8, Lanes),
    /// A pair: low and high words.
    Pair(u8, Lanes, Lanes),
    RegisterAndPredicate(u8, Lanes, u8, u32),
    Predicate(u8, u32),
    Uniform(u8, u32),
    UniformPair(u8, u64),
    UniformPredicate(u8, bool),
    Nothing,
}

/// Splits off the destination: a register, or a predicate and a register.
fn destination(operands: &[Operand]) -> (u8, Option<u8>, &[Operand]) {
    match operands {
        [Operand::Register { number, .. }, Operand::Predicate { number: p, .. }, rest @ ..]
            if !rest.is_empty() && !matches!(rest[0], Operand::Predicate { .. }) =>
        {
            (*number, Some(*p), rest)
        }
        [Operand::Register { number, .. }, rest @ ..] => (*number, None, rest),
        [Operand::Predicate { number: p, .. }, Operand::Register { number, .. }, rest @ ..] => {
            (*number, Some(*p), rest)
        }
        _ => (RZ, None, operands),
    }
}

fn bits(lanes: impl Fn(usize) -> bool) -> u32 {
    (0..LANES).fold(0, |mask, lane| mask | u32::from(lanes(lane)) << lane)
}

fn float(x: u32) -> f32 {
    f32::from_bits(x)
}

/// A half float as a single one.
pub fn half(bits: u16) -> f32 {
    let (sign, exponent, fraction) =
        (u32::from(bits >> 15), bits >> 10 & 31, u32::from(bits & 1023));
    let magnitude = match exponent {
        0 => fraction as f32 / (1u32 << 24) as f32,
        31 => f32::from_bits(0x7f80_0000 | fraction << 13),
        _ => f32::from_bits((u32::from(exponent) + 112) << 23 | fraction << 13),
    };
    f32::from_bits(magnitude.to_bits() | sign << 31)
}

/// The bits of a number that is a half float.
fn half_bits(value: f64) -> u32 {
    let (sign, size) = (u32::from(value.is_sign_negative()) << 15, value.abs());
    let bits = match size {
        0.0 => 0,
        f64::INFINITY => 0x7c00,
        _ if size < 2f64.powi(-14) => (size * 2f64.powi(24)) as u32,
        _ => {
            let exponent = size.log2().floor() as i32;
            ((exponent + 15) as u32) << 10 | ((size / 2f64.powi(exponent) - 1.0) * 1024.0) as u32
        }
    };
    sign | bits
}

fn lookup3(a: u32, b: u32, c: u32, table: u32) -> u32 {
    (0..8).filter(|entry| table >> entry & 1 == 1).fold(0, |out, entry| {
        let pick = |x: u32, bit: u32| if entry >> bit & 1 == 1 { x } else { !x };
        out | pick(a, 2) & pick(b, 1) & pick(c, 0)
    })
}

/// The machine's maximum or minimum: numbers win over NaN, and +0 over −0 in a maximum.
fn extreme(a: f32, b: f32, is_max: bool) -> f32 {
    if a.is_nan() || b.is_nan() {
        return if a.is_nan() { b } else { a };
    }
    if a == b {
        return if a.is_sign_positive() == is_max { a } else { b };
    }
    if (a > b) == is_max { a } else { b }
}

fn compare(instruction: &Instruction, order: std::cmp::Ordering) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    match instruction.suffixes[0].as_str() {
        "EQ" => order == Equal,
        "NE" => order != Equal,
        "LT" => order == Less,
        "LE" => order != Greater,
        "GT" => order == Greater,
        _ => order != Less,
    }
}

impl Warp {
    /// Computes one instruction, or `None` where it is none of arithmetic.
    pub fn compute(&self, instruction: &Instruction, mask: u32) -> Result<Option<Written>, Fault> {
        let name = instruction.name.as_str();
        let (to, predicate, rest) = destination(&instruction.operands);
        let int = |index: usize| self.integers(&rest[index]);
        let register = |lanes: Lanes| Ok(Some(Written::Register(to, lanes)));
        match name {
            "MOV" | "IMAD" | "IADD3" | "VIADD" | "LEA" | "SHF" | "LOP3" | "SEL" | "IMNMX"
            | "VIADDMNMX" => self.compute_integers(instruction, to, predicate, rest),
            "FADD" | "FMUL" | "FFMA" | "FMNMX" | "FSEL" | "MUFU" => {
                register(self.compute_floats(instruction, rest)?)
            }
            "HADD2" => {
                let a = self.integers(&rest[1]);
                register(from_fn(|l| a[l]))
            }
            // Used only to make constants: 0 · 0 + two halves.
            "HFMA2" => {
                let halves = [2, 3].map(|index: usize| match rest[index] {
                    Operand::Float(value) => half_bits(value),
                    _ => 0,
                });
                register([halves[0] << 16 | halves[1]; LANES])
            }
            "I2F" | "I2FP" => {
                let a = int(0);
                let width = if instruction.has("U8") { 8 } else { 16 };
                let keep = if instruction.has("U32") { u32::MAX } else { (1 << width) - 1 };
                register(from_fn(|l| ((a[l] & keep) as f32).to_bits()))
            }
            "CS2R" if !instruction.has("32") => Ok(Some(Written::Pair(to, [0; LANES], [0; LANES]))),
            "ISETP" | "FSETP" | "PLOP3" => Ok(Some(self.compute_predicate(instruction))),
            _ => self.compute_uniform(instruction, mask),
        }
    }

    fn compute_integers(
        &self,
        instruction: &Instruction,
        to: u8,
        predicate: Option<u8>,
        rest: &[Operand],
    ) -> Result<Option<Written>, Fault> {
        let int = |index: usize| self.integers(&rest[index]);
        let carry =
            |index: usize, lane: usize| u32::from(self.predicate(&rest[index]) >> lane & 1 == 1);
        let register = |lanes: Lanes| Ok(Some(Written::Register(to, lanes)));
        let word = |lanes: [u64; LANES]| -> Result<Option<Written>, Fault> {
            let low = from_fn(|l| lanes[l] as u32);
            Ok(Some(match predicate {
                Some(p) => Written::RegisterAndPredicate(to, low, p, bits(|l| lanes[l] >> 32 != 0)),
                None => Written::Register(to, low),
            }))
        };
        match instruction.name.as_str() {
            "MOV" => register(int(0)),
            "IMAD" if instruction.has("WIDE") => {
                let (a, b) = (int(0), int(1));
                let (low, high) = self.wide(&rest[2]);
                let sum: [u64; LANES] = from_fn(|l| {
                    let c = u64::from(high[l]) << 32 | u64::from(low[l]);
                    (u64::from(a[l]) * u64::from(b[l])).wrapping_add(c)
                });
                Ok(Some(Written::Pair(
                    to,
                    from_fn(|l| sum[l] as u32),
                    from_fn(|l| (sum[l] >> 32) as u32),
                )))
            }
            "IMAD" => {
                let (a, b, c) = (int(0), int(1), int(2));
                let extra: Lanes = from_fn(|l| if instruction.has("X") { carry(3, l) } else { 0 });
                register(from_fn(|l| {
                    a[l].wrapping_mul(b[l]).wrapping_add(c[l]).wrapping_add(extra[l])
                }))
            }
            "VIADD" => {
                let (a, b) = (int(0), int(1));
                register(from_fn(|l| a[l].wrapping_add(b[l])))
            }
            "IADD3" => {
                let (a, b, c) = (int(0), int(1), int(2));
                let extra: Lanes = match instruction.has("X") {
                    true => from_fn(|l| carry(3, l) + carry(4, l)),
                    false => [0; LANES],
                };
                word(from_fn(|l| {
                    u64::from(a[l]) + u64::from(b[l]) + u64::from(c[l]) + u64::from(extra[l])
                }))
            }
            "LEA" if instruction.has("HI") => {
                let (a, b, c, shift) = (int(0), int(1), int(2), int(3)[0]);
                register(from_fn(|l| {
                    let high = ((u64::from(c[l]) << 32 | u64::from(a[l])) << shift >> 32) as u32;
                    high.wrapping_add(b[l]).wrapping_add(carry(4, l))
                }))
            }
            "LEA" => {
                let (a, b, shift) = (int(0), int(1), int(2)[0]);
                word(from_fn(|l| u64::from(a[l] << shift) + u64::from(b[l])))
            }
            "SHF" => {
                let (a, shift, c) = (int(0), int(1), int(2));
                let is_left = instruction.has("L");
                let is_wide = instruction.has("U64");
                register(from_fn(|l| match (is_left, is_wide) {
                    (true, true) => {
                        ((u64::from(c[l]) << 32 | u64::from(a[l])) << shift[l] >> 32) as u32
                    }
                    (true, false) => a[l].checked_shl(shift[l]).unwrap_or(0),
                    (false, _) => c[l].checked_shr(shift[l]).unwrap_or(0),
                }))
            }
            "LOP3" => {
                let (a, b, c, table) = (int(0), int(1), int(2), int(3)[0]);
                let lanes = from_fn(|l| lookup3(a[l], b[l], c[l], table));
                Ok(Some(match predicate {
                    Some(p) => Written::RegisterAndPredicate(to, lanes, p, bits(|l| lanes[l] != 0)),
                    None => Written::Register(to, lanes),
                }))
            }
            "SEL" => {
                let (a, b, chosen) = (int(0), int(1), self.predicate(&rest[2]));
                register(from_fn(|l| if chosen >> l & 1 == 1 { a[l] } else { b[l] }))
            }
            "IMNMX" | "VIADDMNMX" if instruction.has("U32") => {
                let at = rest.len() - 1;
                let min = self.predicate(&rest[at]);
                let (a, b) = (int(0), int(1));
                let sum: Lanes = from_fn(|l| if at == 3 { a[l].wrapping_add(b[l]) } else { a[l] });
                let other = int(at - 1);
                register(from_fn(|l| {
                    if min >> l & 1 == 1 { sum[l].min(other[l]) } else { sum[l].max(other[l]) }
                }))
            }
            _ => Ok(None),
        }
    }

    fn compute_floats(&self, instruction: &Instruction, rest: &[Operand]) -> Result<Lanes, Fault> {
        let get = |index: usize| self.floats(&rest[index]);
        let a = get(0);
        Ok(match instruction.name.as_str() {
            "FADD" => {
                let b = get(1);
                from_fn(|l| (float(a[l]) + float(b[l])).to_bits())
            }
            "FMUL" => {
                let b = get(1);
                from_fn(|l| (float(a[l]) * float(b[l])).to_bits())
            }
            "FFMA" => {
                let (b, c) = (get(1), get(2));
                from_fn(|l| float(a[l]).mul_add(float(b[l]), float(c[l])).to_bits())
            }
            "FMNMX" => {
                let (b, min) = (get(1), self.predicate(&rest[2]));
                from_fn(|l| extreme(float(a[l]), float(b[l]), min >> l & 1 == 0).to_bits())
            }
            "FSEL" => {
                let (b, chosen) = (get(1), self.predicate(&rest[2]));
                from_fn(|l| if chosen >> l & 1 == 1 { a[l] } else { b[l] })
            }
            _ if instruction.has("EX2") => from_fn(|l| float(a[l]).exp2().to_bits()),
            _ if instruction.has("RCP") => from_fn(|l| (1.0 / float(a[l])).to_bits()),
            _ => return Err(Fault::Unknown(instruction.to_string())),
        })
    }

    fn compute_predicate(&self, instruction: &Instruction) -> Written {
        let operands = &instruction.operands;
        let Operand::Predicate { number: to, .. } = operands[0] else { return Written::Nothing };
        if instruction.name == "PLOP3" {
            let [a, b, c] = [2, 3, 4].map(|index| self.predicate(&operands[index]));
            let table = self.integers(&operands[5])[0];
            return Written::Predicate(to, lookup3(a, b, c, table));
        }
        let with = self.predicate(&operands[4]);
        let holds = if instruction.name == "FSETP" {
            let (a, b) = (self.floats(&operands[2]), self.floats(&operands[3]));
            // Ours compare with GEU alone: greater, equal or no number.
            bits(|l| float(a[l]).partial_cmp(&float(b[l])).is_none_or(|order| order.is_ge()))
        } else {
            let (a, b) = (self.integers(&operands[2]), self.integers(&operands[3]));
            let below = operands.get(5).map(|operand| self.predicate(operand));
            let is_unsigned = instruction.has("U32");
            bits(|l| {
                let order = match is_unsigned {
                    true => a[l].cmp(&b[l]),
                    false => (a[l] as i32).cmp(&(b[l] as i32)),
                };
                // The high words of a comparison of 64 bits: equal ones leave it to the low words.
                match below.filter(|_| order.is_eq()) {
                    Some(below) => below >> l & 1 == 1,
                    None => compare(instruction, order),
                }
            })
        };
        Written::Predicate(to, if instruction.has("OR") { holds | with } else { holds & with })
    }

    fn compute_uniform(
        &self,
        instruction: &Instruction,
        mask: u32,
    ) -> Result<Option<Written>, Fault> {
        let operands = &instruction.operands;
        let int = |index: usize| self.integers(&operands[index])[0];
        let (to, is_predicate) = match operands.first() {
            Some(Operand::Uniform { number, .. }) => (*number, false),
            Some(Operand::Predicate { number, .. }) if instruction.name == "UISETP" => {
                (*number, true)
            }
            _ => return Ok(None),
        };
        let wide = |index: usize| {
            let (low, high) = self.wide(&operands[index]);
            u64::from(high[0]) << 32 | u64::from(low[0])
        };
        if is_predicate {
            let order = int(2).cmp(&int(3));
            return Ok(Some(Written::UniformPredicate(to, compare(instruction, order))));
        }
        let value = match instruction.name.as_str() {
            "R2UR" => {
                let lanes = self.integers(&operands[1]);
                let first = lanes[mask.trailing_zeros() as usize % LANES];
                if (0..LANES).any(|l| mask >> l & 1 == 1 && lanes[l] != first) {
                    return Err(Fault::NotUniform { instruction: instruction.to_string() });
                }
                first
            }
            "ULDC" if instruction.has("64") => return Ok(Some(Written::UniformPair(to, wide(1)))),
            "UIMAD" if instruction.has("WIDE") => {
                let product = u64::from(int(1)) * u64::from(int(2));
                return Ok(Some(Written::UniformPair(to, product.wrapping_add(wide(3)))));
            }
            "ULDC" | "UMOV" => int(1),
            "UIMAD" => int(1).wrapping_mul(int(2)).wrapping_add(int(3)),
            "UIADD3" => int(1).wrapping_add(int(2)).wrapping_add(int(3)),
            "ULEA" => (int(1) << int(3)).wrapping_add(int(2)),
            "ULOP3" => lookup3(int(1), int(2), int(3), int(4)),
            "USEL" => {
                if self.predicate(&operands[3]) & 1 == 1 {
                    int(1)
                } else {
                    int(2)
                }
            }
            "USHF" if instruction.has("L") => int(1).checked_shl(int(2)).unwrap_or(0),
            // Without HI the value stands in the first operand, with it in the last.
            "USHF" => {
                let from = if instruction.has("HI") { int(3) } else { int(1) };
                from.checked_shr(int(2)).unwrap_or(0)
            }
            "S2UR" => self.special(&operands[1])?[0],
            _ => return Ok(None),
        };
        Ok(Some(Written::Uniform(to, value)))
    }

    /// An operand as integers of all lanes.
    pub fn integers(&self, operand: &Operand) -> Lanes {
        match operand {
            Operand::Register { number: RZ, .. } => [0; LANES],
            Operand::Register { number, is_negated, part } => {
                let from = &self.registers[*number as usize];
                match (part, is_negated) {
                    (Part::All, false) => *from,
                    (Part::All, true) => from_fn(|l| from[l].wrapping_neg()),
                    (Part::Byte(byte), _) => from_fn(|l| from[l] >> (8 * byte) & 255),
                    (Part::Half(at), _) => {
                        from_fn(|l| half((from[l] >> (16 * at)) as u16).to_bits())
                    }
                }
            }
            Operand::Uniform { number, is_negated } => {
                let value = self.uniform(*number);
                [if *is_negated { value.wrapping_neg() } else { value }; LANES]
            }
            Operand::Constant { offset, is_negated } => {
                let value = self.constant(*offset);
                [if *is_negated { value.wrapping_neg() } else { value }; LANES]
            }
            Operand::Integer(value) => [*value; LANES],
            Operand::Float(value) => [(*value as f32).to_bits(); LANES],
            _ => [0; LANES],
        }
    }

    /// An operand as floats of all lanes: a minus sign flips the sign bit.
    fn floats(&self, operand: &Operand) -> Lanes {
        let sign = match operand {
            Operand::Register { is_negated: true, .. }
            | Operand::Uniform { is_negated: true, .. }
            | Operand::Constant { is_negated: true, .. } => 1 << 31,
            _ => 0,
        };
        let plain = match operand.clone() {
            Operand::Register { number, part, .. } => {
                Operand::Register { number, part, is_negated: false }
            }
            Operand::Uniform { number, .. } => Operand::Uniform { number, is_negated: false },
            Operand::Constant { offset, .. } => Operand::Constant { offset, is_negated: false },
            other => other,
        };
        let lanes = self.integers(&plain);
        from_fn(|l| lanes[l] ^ sign)
    }

    /// An operand of 64 bits: low and high words.
    pub fn wide(&self, operand: &Operand) -> (Lanes, Lanes) {
        let next = match operand {
            Operand::Register { number: RZ, .. } | Operand::Uniform { number: URZ, .. } => {
                operand.clone()
            }
            Operand::Register { number, is_negated, part } => {
                Operand::Register { number: number + 1, is_negated: *is_negated, part: *part }
            }
            Operand::Uniform { number, is_negated } => {
                Operand::Uniform { number: number + 1, is_negated: *is_negated }
            }
            Operand::Constant { offset, is_negated } => {
                Operand::Constant { offset: offset + 4, is_negated: *is_negated }
            }
            _ => Operand::Integer(0),
        };
        (self.integers(operand), self.integers(&next))
    }

    /// A predicate as a mask of lanes.
    pub fn predicate(&self, operand: &Operand) -> u32 {
        match operand {
            Operand::Predicate { number, is_negated } => self.predicate_mask(*number, *is_negated),
            _ => u32::MAX,
        }
    }

    pub fn predicate_mask(&self, number: u8, is_negated: bool) -> u32 {
        let mask = if number == PT { u32::MAX } else { self.predicates[number as usize] };
        if is_negated { !mask } else { mask }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_become_floats() {
        assert_eq!(
            [half(0x3c00), half(0xc000), half(1), half(0x7c00)],
            [1.0, -2.0, 2f32.powi(-24), f32::INFINITY]
        );
        for bits in [0, 4, 0x3c00, 0x3c01, 0xc000, 0x7bff] {
            assert_eq!(half_bits(f64::from(half(bits))), u32::from(bits));
        }
    }

    #[test]
    fn truth_tables_select_bits() {
        assert_eq!(lookup3(0b1100, 0b1010, 0, 0xc0) & 15, 0b1000);
        assert_eq!(extreme(f32::NAN, 1.0, true), 1.0);
    }
}
