//! Speeds of prompts and answers.

/// Tokens per second; 0 if nothing was timed.
pub(super) fn speed(tokens: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

/// Tokens per second of an answer's steps. The first token comes from the prompt's last step, so it
/// is not counted.
pub(super) fn answer_speed(tokens: usize, seconds: f64) -> f64 {
    speed(tokens.saturating_sub(1), seconds)
}
