//! The macros of the crate `tracing`. Without the feature `tracing`, macros of the same names that
//! do nothing.

#[cfg(feature = "tracing")]
pub(crate) use ::tracing::{debug, debug_span, error, info_span, warn};

#[cfg(not(feature = "tracing"))]
pub(crate) use silent::{no_event as debug, no_event as error, no_event as warn};
#[cfg(not(feature = "tracing"))]
pub(crate) use silent::{no_span as debug_span, no_span as info_span};

#[cfg(not(feature = "tracing"))]
mod silent {
    /// A span that does nothing.
    pub(crate) struct NoSpan;

    impl NoSpan {
        pub(crate) fn enter(&self) -> NoSpan {
            NoSpan
        }

        pub(crate) fn entered(self) -> NoSpan {
            self
        }
    }

    macro_rules! no_event {
        ($($anything:tt)*) => {
            ()
        };
    }

    macro_rules! no_span {
        ($($anything:tt)*) => {
            $crate::tracing::NoSpan
        };
    }

    pub(crate) use {no_event, no_span};
}

#[cfg(not(feature = "tracing"))]
pub(crate) use silent::NoSpan;
