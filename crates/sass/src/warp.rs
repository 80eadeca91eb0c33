//! One warp: registers, divergence, and accesses to memory.
//!
//! Lanes that agree on where they are form a group. A branch that lanes disagree on splits a group;
//! `BSYNC` joins the lanes that passed the matching `BSSY` together. Groups run one after the other
//! until they wait, which the machine's rules allow and which is the least helpful order for code that
//! forgot to wait.

use std::array::from_fn;

use crate::Fault;
use crate::compute::Written;
use crate::launch::{Access, Kind, Observer};
use crate::memory::{Memory, Scratchpad};
use crate::parse::{Address, Instruction, Operand, PT, Program, RZ, UP0, URZ};

pub const LANES: usize = 32;
pub type Lanes = [u32; LANES];
/// Instructions that a warp may run.
const STEPS_MAX: u64 = 5_000_000;

pub struct Warp {
    pub registers: Box<[Lanes; 256]>,
    /// Masks of lanes; uniform predicates from [`UP0`] on are all or nothing.
    pub predicates: [u32; 16],
    uniforms: [u32; 64],
    constants: std::rc::Rc<Vec<u8>>,
    /// Block coordinates, and the thread coordinates of each lane.
    block: [u32; 3],
    threads: [[u32; 3]; LANES],
    groups: Vec<Group>,
    waiting: Vec<Waiting>,
    at_barrier: Vec<Group>,
    exited: u32,
    /// The lanes that each lane passed `BSSY` with.
    joins: [Lanes; 16],
    local: Vec<Scratchpad>,
    pub steps: u64,
    number: usize,
}

/// Lanes that run together.
#[derive(Clone, Copy)]
struct Group {
    mask: u32,
    pc: usize,
}

/// Lanes that reached `BSYNC`, and those that they wait for.
struct Waiting {
    mask: u32,
    pc: usize,
    partners: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Done,
    /// All lanes that still run are at a barrier of the block.
    AtBarrier,
}

/// What a warp runs on.
pub struct World<'a> {
    pub program: &'a Program,
    pub memory: &'a mut Memory,
    pub shared: &'a mut Scratchpad,
    pub observer: &'a mut dyn Observer,
}

/// Where a warp stands in its grid.
pub struct Place {
    pub block: [u32; 3],
    pub number: usize,
    /// Lanes that have a thread, and its coordinates.
    pub mask: u32,
    pub threads: [[u32; 3]; LANES],
}

impl Warp {
    pub fn new(place: Place, constants: std::rc::Rc<Vec<u8>>, local_bytes: usize) -> Self {
        Self {
            registers: Box::new([[0; LANES]; 256]),
            predicates: [0; 16],
            uniforms: [0; 64],
            constants,
            block: place.block,
            threads: place.threads,
            groups: vec![Group { mask: place.mask, pc: 0 }],
            waiting: Vec::new(),
            at_barrier: Vec::new(),
            exited: !place.mask,
            joins: [[0; LANES]; 16],
            local: vec![Scratchpad::local(local_bytes); LANES],
            steps: 0,
            number: place.number,
        }
    }

    /// Runs until all lanes ended or wait for the block.
    pub fn run(&mut self, world: &mut World) -> Result<Status, Fault> {
        loop {
            let Some(group) = self.groups.pop() else {
                if self.join() {
                    continue;
                }
                return match (self.waiting.is_empty(), self.at_barrier.is_empty()) {
                    (true, true) => Ok(Status::Done),
                    (true, false) => Ok(Status::AtBarrier),
                    _ => Err(Fault::Deadlock),
                };
            };
            self.run_group(group, world)?;
        }
    }

    /// Lets lanes go on that waited for the block.
    pub fn release(&mut self) {
        self.groups.append(&mut self.at_barrier);
    }

    /// Joins lanes whose partners all arrived or ended.
    fn join(&mut self) -> bool {
        for index in 0..self.waiting.len() {
            let Waiting { pc, partners, .. } = self.waiting[index];
            let same = |w: &&Waiting| w.pc == pc && w.partners == partners;
            let arrived = self.waiting.iter().filter(same).fold(0, |mask, w| mask | w.mask);
            if partners & !self.exited & !arrived == 0 {
                self.waiting.retain(|w| !(w.pc == pc && w.partners == partners));
                self.groups.push(Group { mask: arrived, pc: pc + 1 });
                return true;
            }
        }
        false
    }

    fn run_group(&mut self, mut group: Group, world: &mut World) -> Result<(), Fault> {
        while let Some(instruction) = world.program.code.get(group.pc) {
            self.steps += 1;
            if self.steps > STEPS_MAX {
                return Err(Fault::Endless);
            }
            let active = group.mask & self.predicate_mask(instruction.guard.0, instruction.guard.1);
            let step = self.step(instruction, group, active, world);
            let at = |fault| Fault::At {
                kernel: world.program.name.clone(),
                pc: group.pc * 16,
                instruction: instruction.to_string(),
                fault: Box::new(fault),
            };
            match step.map_err(at)? {
                Some(next) => group = next,
                None => return Ok(()),
            }
        }
        Err(Fault::OutOfBounds { at: group.pc as u64 * 16, len: 16 })
    }

    /// One instruction. Returns the group that goes on, if it does at once.
    fn step(
        &mut self,
        instruction: &Instruction,
        group: Group,
        active: u32,
        world: &mut World,
    ) -> Result<Option<Group>, Fault> {
        let next = Group { mask: group.mask, pc: group.pc + 1 };
        let operands = &instruction.operands;
        match instruction.name.as_str() {
            "EXIT" => {
                self.exited |= active;
                let left = group.mask & !active;
                return Ok((left != 0).then_some(Group { mask: left, pc: group.pc + 1 }));
            }
            // The calls in our kernels are jumps past the range of a branch: nothing returns from them.
            "BRA" | "CALL" => {
                let taken = match &operands[0] {
                    predicate @ Operand::Predicate { .. } => active & self.predicate(predicate),
                    _ => active,
                };
                let Some(Operand::Integer(target)) = operands.last() else {
                    return Err(Fault::Unknown(instruction.to_string()));
                };
                return Ok(Some(self.branch(group, taken, *target as usize / 16)));
            }
            "BSSY" => {
                if let Operand::Barrier(barrier) = operands[0] {
                    for lane in lanes(active) {
                        self.joins[barrier as usize][lane] = active;
                    }
                }
            }
            "BSYNC" => {
                let Operand::Barrier(barrier) = operands[0] else {
                    return Err(Fault::Unknown(instruction.to_string()));
                };
                let left = group.mask & !active;
                if left != 0 {
                    self.groups.push(Group { mask: left, pc: group.pc + 1 });
                }
                for lane in lanes(active) {
                    let partners = self.joins[barrier as usize][lane];
                    self.waiting.push(Waiting { mask: 1 << lane, pc: group.pc, partners });
                }
                self.join();
                return Ok(None);
            }
            "BAR" => {
                self.at_barrier.push(next);
                return Ok(None);
            }
            "NOP" => {}
            _ if active == 0 => {}
            "S2R" => {
                let Operand::Register { number, .. } = operands[0] else { return Ok(Some(next)) };
                let value = self.special(&operands[1])?;
                self.set(number, active, &value);
            }
            "LDG" | "STG" | "LDS" | "STS" | "LDL" | "STL" | "CCTL" | "LDC" => {
                self.access(instruction, group.pc, active, world)?;
            }
            _ => match self.compute(instruction, active)? {
                Some(written) => self.write(written, active),
                None => return Err(Fault::Unknown(instruction.to_string())),
            },
        }
        Ok(Some(next))
    }

    fn branch(&mut self, group: Group, taken: u32, target: usize) -> Group {
        let fallen = Group { mask: group.mask & !taken, pc: group.pc + 1 };
        let jumped = Group { mask: taken, pc: target };
        match (fallen.mask, jumped.mask) {
            (0, _) => jumped,
            (_, 0) => fallen,
            _ => {
                self.groups.push(jumped);
                fallen
            }
        }
    }

    fn write(&mut self, written: Written, mask: u32) {
        match written {
            Written::Register(to, values) => self.set(to, mask, &values),
            Written::Pair(to, low, high) => {
                self.set(to, mask, &low);
                self.set(if to == RZ { RZ } else { to + 1 }, mask, &high);
            }
            Written::RegisterAndPredicate(to, values, p, bits) => {
                self.set(to, mask, &values);
                self.set_predicate(p, mask, bits);
            }
            Written::Predicate(p, bits) => self.set_predicate(p, mask, bits),
            Written::Uniform(to, value) => self.set_uniform(to, value),
            Written::UniformPair(to, value) => {
                self.set_uniform(to, value as u32);
                self.set_uniform(to + 1, (value >> 32) as u32);
            }
            Written::UniformPredicate(p, value) => {
                if p >= UP0 {
                    self.predicates[p as usize] = if value { u32::MAX } else { 0 };
                }
            }
            Written::Nothing => {}
        }
    }

    fn set(&mut self, to: u8, mask: u32, values: &Lanes) {
        if to != RZ {
            let register = &mut self.registers[to as usize];
            for lane in lanes(mask) {
                register[lane] = values[lane];
            }
        }
    }

    fn set_predicate(&mut self, p: u8, mask: u32, bits: u32) {
        if p != PT {
            let predicate = &mut self.predicates[p as usize];
            *predicate = *predicate & !mask | bits & mask;
        }
    }

    fn set_uniform(&mut self, to: u8, value: u32) {
        if to < URZ {
            self.uniforms[to as usize] = value;
        }
    }

    pub fn uniform(&self, number: u8) -> u32 {
        if number == URZ { 0 } else { self.uniforms[number as usize] }
    }

    pub fn constant(&self, offset: u32) -> u32 {
        let bytes = self.constants.get(offset as usize..offset as usize + 4);
        bytes.map_or(0, |bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")))
    }

    pub fn special(&self, operand: &Operand) -> Result<Lanes, Fault> {
        let Operand::Special(name) = operand else {
            return Err(Fault::Unknown("a register".into()));
        };
        Ok(match name.as_str() {
            "SR_TID.X" => from_fn(|l| self.threads[l][0]),
            "SR_TID.Y" => from_fn(|l| self.threads[l][1]),
            "SR_CTAID.X" => [self.block[0]; LANES],
            "SR_CTAID.Y" => [self.block[1]; LANES],
            "SR_CgaCtaId" => [0; LANES],
            _ => return Err(Fault::Unknown(name.clone())),
        })
    }

    fn access(
        &mut self,
        instruction: &Instruction,
        pc: usize,
        mask: u32,
        world: &mut World,
    ) -> Result<(), Fault> {
        let operands = &instruction.operands;
        match instruction.name.as_str() {
            "LDC" => {
                let Operand::Register { number, .. } = operands[0] else { return Ok(()) };
                let (low, high) = self.wide(&operands[1]);
                self.set(number, mask, &low);
                if instruction.has("64") {
                    self.set(number + 1, mask, &high);
                }
                Ok(())
            }
            "LDG" | "STG" | "CCTL" => self.global(instruction, pc, mask, world),
            _ => self.scratchpad(instruction, mask, world),
        }
    }

    fn addresses(&self, address: &Address) -> [u64; LANES] {
        let (low, high) = match address.register {
            Some(RZ) | None => ([0; LANES], [0; LANES]),
            Some(number) => {
                let high =
                    if address.is_wide { self.registers[number as usize + 1] } else { [0; LANES] };
                (self.registers[number as usize], high)
            }
        };
        let uniform = u64::from(address.uniform.map_or(0, |number| self.uniform(number)));
        from_fn(|l| {
            let register =
                (u64::from(high[l]) << 32 | u64::from(low[l])) * u64::from(address.scale);
            register.wrapping_add(uniform).wrapping_add(address.offset as u64)
        })
    }

    fn global(
        &mut self,
        instruction: &Instruction,
        pc: usize,
        mask: u32,
        world: &mut World,
    ) -> Result<(), Fault> {
        let is_load = instruction.name == "LDG";
        let at = usize::from(is_load);
        let Operand::Address(address) = &instruction.operands[at] else {
            return Err(Fault::Unknown(instruction.to_string()));
        };
        // The text of a prefetch does not say that its register is a pair.
        let is_prefetch = instruction.name == "CCTL";
        let address = Address { is_wide: address.is_wide || is_prefetch, ..address.clone() };
        let (addresses, len) = (self.addresses(&address), width(instruction));
        let kind = match (is_prefetch, is_load) {
            (true, _) => Kind::Prefetch,
            (_, true) => Kind::Load,
            _ => Kind::Store,
        };
        self.observe(kind, pc, mask, &addresses, len, address.descriptor, world);
        for lane in lanes(mask) {
            let at = addresses[lane];
            if is_prefetch {
                // The machine ignores bad ones; ours are all meant to be rows.
                world.memory.read(at, 1)?;
                continue;
            }
            if at % len as u64 != 0 {
                return Err(Fault::Misaligned { at, len });
            }
            let Operand::Register { number, .. } = instruction.operands[1 - usize::from(is_load)]
            else {
                return Err(Fault::Unknown(instruction.to_string()));
            };
            if is_load {
                let bytes = world.memory.read(at, len)?;
                for (index, word) in bytes.chunks(4).enumerate() {
                    let mut value = [0; 4];
                    value[..word.len()].copy_from_slice(word);
                    self.set_lane(number, index, lane, u32::from_le_bytes(value));
                }
            } else {
                let words: Vec<u8> = self.lane_bytes(number, lane, len);
                let [x, y, z] = self.block.map(u64::from);
                let thread = ((z << 20 | y) << 20 | x) << 10 | (self.number * LANES + lane) as u64;
                world.memory.write(at, len, thread)?.copy_from_slice(&words);
            }
        }
        Ok(())
    }

    fn scratchpad(
        &mut self,
        instruction: &Instruction,
        mask: u32,
        world: &mut World,
    ) -> Result<(), Fault> {
        let is_load = instruction.name.starts_with("LD");
        let is_shared = instruction.name.ends_with('S');
        let (Operand::Address(address), Operand::Register { number, .. }) = (
            &instruction.operands[usize::from(is_load)],
            &instruction.operands[usize::from(!is_load)],
        ) else {
            return Err(Fault::Unknown(instruction.to_string()));
        };
        let (addresses, len) = (self.addresses(address), width(instruction));
        for lane in lanes(mask) {
            let at = i64::from(addresses[lane] as u32 as i32);
            if is_load {
                let from = if is_shared { &*world.shared } else { &self.local[lane] };
                let bytes = from.read(at, len)?.to_vec();
                for (index, word) in bytes.chunks(4).enumerate() {
                    let mut value = [0; 4];
                    value[..word.len()].copy_from_slice(word);
                    self.set_lane(*number, index, lane, u32::from_le_bytes(value));
                }
            } else {
                let bytes = self.lane_bytes(*number, lane, len);
                let to = if is_shared { &mut *world.shared } else { &mut self.local[lane] };
                to.write(at, &bytes)?;
            }
        }
        Ok(())
    }

    fn set_lane(&mut self, number: u8, index: usize, lane: usize, value: u32) {
        if number != RZ {
            self.registers[number as usize + index][lane] = value;
        }
    }

    fn lane_bytes(&self, number: u8, lane: usize, len: usize) -> Vec<u8> {
        let word = |index: usize| match number {
            RZ => 0,
            _ => self.registers[number as usize + index][lane],
        };
        let mut bytes: Vec<u8> = (0..len.div_ceil(4)).flat_map(|i| word(i).to_le_bytes()).collect();
        bytes.truncate(len);
        bytes
    }

    #[expect(clippy::too_many_arguments, reason = "an access has that many facts")]
    fn observe(
        &self,
        kind: Kind,
        pc: usize,
        mask: u32,
        addresses: &[u64; LANES],
        len: usize,
        descriptor: Option<u8>,
        world: &mut World,
    ) {
        let descriptor = descriptor.map(|number| {
            u64::from(self.uniform(number + 1)) << 32 | u64::from(self.uniform(number))
        });
        let access = Access {
            kind,
            pc: pc * 16,
            block: self.block,
            warp: self.number,
            mask,
            addresses,
            len,
            descriptor,
        };
        world.observer.access(&access);
    }
}

/// Bytes that an access moves per lane.
fn width(instruction: &Instruction) -> usize {
    let widths = [("128", 16), ("64", 8), ("U16", 2), ("U8", 1)];
    widths.into_iter().find(|(suffix, _)| instruction.has(suffix)).map_or(4, |(_, len)| len)
}

/// The numbers of the lanes of a mask.
pub fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (lane < 32).then_some(lane as usize)
    })
}
