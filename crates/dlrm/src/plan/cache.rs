//! How much of a shared cache one core can really keep.
//!
//! A virtual machine reports the whole last-level cache of its processor, of which its few cores have
//! a small share while neighbours use theirs. So the size is measured: a chain of dependent loads
//! over more and more lines takes as long as the cache does while they fit, and as long as memory
//! does when they do not.

use std::hint::black_box;
use std::time::Instant;

use hither_kernels::memory::room;

/// A cache line with the number of the line that is read next.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line(u32);

/// Loads that are timed for each size; single ones are noisy.
const LOADS: usize = 1 << 15;
/// The least number of lines: sizes below say nothing about the last level.
const LINES_MIN: usize = 1 << 10;
/// No core keeps more than this for long in a cache that others share.
const BYTES_MAX: usize = 128 << 20;
/// Memory must be this much slower than the cache, or the difference cannot be told.
const SLOWER: f64 = 1.25;

/// The bytes of a last-level cache of `nominal` bytes that one core keeps: at least twice the second
/// level, unless even that is more than `nominal`. Takes about a second.
pub fn kept_bytes(l2_bytes: usize, nominal: usize) -> usize {
    let least = (l2_bytes * 2).max(LINES_MIN * size_of::<Line>());
    let most = nominal.saturating_mul(4).min(BYTES_MAX);
    let doubled = std::iter::successors(Some(least), |size| size.checked_mul(2));
    let sizes: Vec<usize> = doubled.take_while(|size| *size <= most).collect();
    let Some(largest) = sizes.last() else { return nominal };
    let mut lines = room::<Line>(largest / size_of::<Line>());
    let times: Vec<f64> =
        sizes.iter().map(|size| chain_ns(&mut lines, size / size_of::<Line>())).collect();
    kept(&sizes, &times).min(nominal)
}

/// The last size before loads take longer than half way from the nearest to the furthest. All of
/// them where even the furthest are not clearly slower.
fn kept(sizes: &[usize], times: &[f64]) -> usize {
    let (near, far) = (times[0], times[times.len() - 1]);
    if far / near < SLOWER {
        return sizes[sizes.len() - 1];
    }
    let fits = times.iter().take_while(|ns| **ns <= (near + far) / 2.0).count();
    sizes[fits.max(1) - 1]
}

/// Nanoseconds per load of a chain through so many lines, in an order without a pattern.
fn chain_ns(lines: &mut Vec<Line>, count: usize) -> f64 {
    lines.clear();
    lines.extend((0..count as u32).map(Line));
    // Sattolo's shuffle: one cycle through all lines.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for i in (1..count).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let j = ((u128::from(state) * i as u128) >> 64) as usize;
        lines.swap(i, j);
    }
    let mut at = 0;
    let mut walk = |loads: usize| {
        let begin = Instant::now();
        for _ in 0..loads {
            at = lines[at as usize].0;
        }
        black_box(at);
        begin.elapsed().as_secs_f64() * 1e9 / loads as f64
    };
    walk(count.min(8 * LOADS));
    (0..3).map(|_| walk(LOADS)).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_from_cache_to_memory_is_found() {
        let sizes = [4, 8, 16, 32, 64, 128];
        assert_eq!(kept(&sizes, &[20.0, 21.0, 25.0, 70.0, 90.0, 100.0]), 16);
        assert_eq!(kept(&sizes, &[20.0, 80.0, 90.0, 95.0, 99.0, 100.0]), 4);
        // Nothing is slower: all of it is near.
        assert_eq!(kept(&sizes, &[20.0, 20.0, 21.0, 22.0, 20.0, 21.0]), 128);
    }

    #[test]
    fn a_chain_visits_every_line() {
        let mut lines = room(LINES_MIN);
        assert!(chain_ns(&mut lines, LINES_MIN) > 0.0);
        let (mut at, mut seen) = (0, vec![false; LINES_MIN]);
        for _ in 0..LINES_MIN {
            assert!(!std::mem::replace(&mut seen[at], true));
            at = lines[at].0 as usize;
        }
        assert_eq!(at, 0);
    }

    #[test]
    fn what_is_kept_lies_between_the_levels() {
        let kept = kept_bytes(1 << 16, 1 << 20);
        assert!((1 << 17..=1 << 20).contains(&kept), "{kept}");
        assert_eq!(kept_bytes(1 << 20, 1 << 16), 1 << 16);
    }
}
