//! One seed reproduces a run. Each use of randomness draws from its own named stream, so that adding
//! a draw in one place does not change the numbers in another.

use rand_pcg::Pcg64Mcg;

/// Random generator for the named purpose. The same seed and name give the same numbers on every machine.
pub fn stream(seed: u64, name: &str) -> Pcg64Mcg {
    // FNV-1a over the name, mixed with the seed by splitmix64: both halves of the state differ
    // for any two (seed, name) pairs that a run uses.
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in name.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    let high = splitmix(seed ^ hash);
    let low = splitmix(high ^ seed.rotate_left(32));
    Pcg64Mcg::new(u128::from(high) << 64 | u128::from(low))
}

fn splitmix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
