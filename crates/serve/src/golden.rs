//! A golden request: `golden.json` beside a version's model holds a request and the scores that it must
//! get. It is run when the version is loaded; a version that answers otherwise does not serve.

use std::path::Path;

use bytes::Bytes;
use serde::Deserialize;

use crate::http::request_in_json;
use crate::served::Served;

pub const GOLDEN_FILE: &str = "golden.json";
/// Scores may differ by this much, unless the file says otherwise.
const TOLERANCE: f32 = 1e-3;

/// What the file has beside the request.
#[derive(Deserialize)]
struct Expected {
    /// Of all samples, one after the other.
    expected_scores: Vec<f32>,
    tolerance: Option<f32>,
}

/// Checks a version against its file, if it has one.
pub(crate) fn check(served: &Served, dir: &Path) -> Result<(), String> {
    let path = dir.join(GOLDEN_FILE);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
    };
    let problem = |problem: String| format!("{}: {problem}", path.display());
    let expected: Expected =
        serde_json::from_slice(&text).map_err(|error| problem(error.to_string()))?;
    let mut request = request_in_json(Bytes::from(text)).map_err(|e| problem(e.to_string()))?;
    let scores = served.score_now(&mut request).map_err(problem)?;
    let Expected { expected_scores, tolerance } = expected;
    if scores.len() != expected_scores.len() {
        let (found, wanted) = (scores.len(), expected_scores.len());
        return Err(problem(format!("the model gives {found} scores; {wanted} are expected")));
    }
    let tolerance = tolerance.unwrap_or(TOLERANCE);
    let pairs = scores.iter().zip(&expected_scores).enumerate();
    // A score that is no number differs too.
    let agrees = |(found, wanted): (&f32, &f32)| (found - wanted).abs() <= tolerance;
    match pairs.into_iter().find(|(_, pair)| !agrees(*pair)) {
        None => Ok(()),
        Some((at, (found, wanted))) => Err(problem(format!(
            "score {at} is {found}; {wanted} is expected, to within {tolerance}"
        ))),
    }
}
