//! The highest rate that keeps a latency target: steps up or down to a bracket, then bisection.

/// Steps that lead from the first guess to a bracket; 0.6^20 is one in 27,000.
const STEPS_MAX: usize = 20;
const UP: f64 = 1.3;
const DOWN: f64 = 0.6;

/// Returns the highest rate found to pass, or `None` where none did. `passes` offers a rate and tells
/// whether the target held; `guess` is where the search begins, `lowest` the last rate that is worth a
/// trial, and `precision` the ratio, less one, between the lowest rate that failed and the result.
pub fn highest_rate<E>(
    guess: f64,
    lowest: f64,
    precision: f64,
    mut passes: impl FnMut(f64) -> Result<bool, E>,
) -> Result<Option<f64>, E> {
    let (mut good, mut bad) = (None, None);
    let mut rate = guess;
    for _ in 0..STEPS_MAX {
        if passes(rate)? {
            good = Some(rate);
            rate *= UP;
        } else {
            bad = Some(rate);
            rate *= DOWN;
        }
        if (good.is_some() && bad.is_some()) || rate < lowest {
            break;
        }
    }
    let (Some(mut good), Some(mut bad)) = (good, bad) else { return Ok(good) };
    while bad / good > 1.0 + precision {
        let middle = (good * bad).sqrt();
        if passes(middle)? {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Ok(Some(good))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_limit_is_found_from_any_guess(limit in 1.0..1e6_f64, off in 0.05..20.0_f64) {
            let mut tried = 0;
            let found = highest_rate(limit * off, 0.0, 0.05, |rate| {
                tried += 1;
                Ok::<_, Infallible>(rate <= limit)
            });
            let found = found.unwrap().expect("a low rate passes");
            prop_assert!(found <= limit && found * 1.06 > limit, "{found} for {limit}");
            prop_assert!(tried < 24, "{tried} trials");
        }
    }

    #[test]
    fn a_target_that_no_rate_keeps_is_told() {
        let mut tried = Vec::new();
        let found = highest_rate(100.0, 30.0, 0.05, |rate| {
            tried.push(rate);
            Ok::<_, Infallible>(false)
        });
        assert_eq!((found, tried), (Ok(None), vec![100.0, 60.0, 36.0]));
    }
}
