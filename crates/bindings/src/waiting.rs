//! Interruptible waiting for the model's thread.

use crate::error::Error;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Whether the caller still waits: asked again and again meanwhile, on the caller's thread.
pub type WaitCheck<'a> = &'a mut dyn FnMut() -> bool;

/// How often the caller is asked.
const PAUSE: Duration = Duration::from_millis(20);

/// The next value; none when the other end has gone.
///
/// # Errors
/// The caller does not wait any longer.
pub(crate) fn receive<T>(receiver: &Receiver<T>, go_on: WaitCheck<'_>) -> Result<Option<T>, Error> {
    // asked before each value, so that a caller to whom values come quickly can stop, too
    while go_on() {
        match receiver.recv_timeout(PAUSE) {
            Ok(value) => return Ok(Some(value)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    Err(Error::stopped())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_caller_can_give_up() {
        let (sender, receiver) = channel::<u32>();
        let mut asked = 0;
        let waited = receive(&receiver, &mut || {
            asked += 1;
            asked < 3
        });
        assert_eq!(waited, Err(Error::stopped()));
        assert_eq!(asked, 3);
        sender.send(7).unwrap();
        drop(sender);
        assert_eq!(receive(&receiver, &mut || false), Err(Error::stopped()));
        assert_eq!(receive(&receiver, &mut || true), Ok(Some(7)));
        assert_eq!(receive(&receiver, &mut || true), Ok(None));
    }
}
