//! Matmul bodies compiled for an ISA.

/// A [`MatmulFn`](super::MatmulFn) from a body with the same arguments: `compiled!(body)` for the
/// baseline, `compiled!(Avx2: body)` and so on for an [ISA](crate::isa). Without that ISA the
/// function panics.
///
/// Bodies are `#[inline(always)]`; one that is not inlined would be compiled without the ISA's
/// instructions. The contract of an unsafe body may only require that it is compiled for the ISA
/// and runs on a CPU that has it.
macro_rules! compiled {
    ($isa:ident: $body:expr) => {{
        fn kernel(args: $crate::MatmulArgs<'_, '_>, scratch: &mut $crate::MatmulScratch) {
            $crate::isa::isa_fn! { $isa;
                fn inner(args: $crate::MatmulArgs<'_, '_>, scratch: &mut $crate::MatmulScratch) {
                    #[allow(unused_unsafe, reason = "some bodies are safe to call")]
                    // SAFETY: this function is compiled for the ISA, and its caller holds the ISA's
                    // token.
                    unsafe {
                        $body(args, scratch)
                    }
                }
            }
            let _proof = <$crate::isa::$isa>::expect();
            // SAFETY: the token proves that the CPU has the features that `inner` is compiled for.
            unsafe { inner(args, scratch) }
        }
        kernel as $crate::MatmulFn
    }};
    ($body:expr) => {{
        fn kernel(args: $crate::MatmulArgs<'_, '_>, scratch: &mut $crate::MatmulScratch) {
            #[allow(unused_unsafe, reason = "some bodies are safe to call")]
            // SAFETY: the baseline needs no instructions beyond those that this crate is compiled
            // for.
            unsafe {
                $body(args, scratch)
            }
        }
        kernel as $crate::MatmulFn
    }};
}
pub(super) use compiled;
