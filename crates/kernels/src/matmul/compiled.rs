//! One body of a product compiled for each instruction set.

/// A [`MatmulFn`](super::MatmulFn) over a body, which takes the same arguments: `compiled!(body)` for the baseline, `compiled!(avx2: body)`
/// and so on for an instruction set. On a machine without it the function panics.
///
/// Bodies are `#[inline(always)]`, else they would be compiled without the instructions. One that is unsafe may demand no more than code
/// compiled for the instruction set, on a machine that has it.
macro_rules! compiled {
    (avx2: $body:expr) => {
        compiled!(@ $body, |has| has.avx2, "avx2,fma,f16c")
    };
    (avx2_vnni: $body:expr) => {
        compiled!(@ $body, |has| has.avx2 && has.avx_vnni, "avx2,fma,f16c,avxvnni")
    };
    (avx512: $body:expr) => {
        compiled!(
            @ $body, |has| has.avx512, "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,avx2,fma,f16c"
        )
    };
    ($body:expr) => {
        compiled!(@ $body)
    };
    (@ $body:expr $(, |$has:ident| $check:expr, $enable:literal)?) => {{
        fn kernel(
            args: $crate::MatmulArgs<'_, '_>,
            scratch: &mut $crate::Scratch,
        ) {
            $(#[target_feature(enable = $enable)])?
            fn inner(
                args: $crate::MatmulArgs<'_, '_>,
                scratch: &mut $crate::Scratch,
            ) {
                #[allow(unused_unsafe, reason = "some bodies are safe to call")]
                // SAFETY: compiled for the instruction set.
                unsafe {
                    $body(args, scratch)
                }
            }
            $(
                let $has = $crate::features();
                assert!($check, "a kernel on a machine without its instructions");
            )?
            #[allow(unused_unsafe, reason = "plain code is safe to call")]
            // SAFETY: the processor has the features, as just checked.
            unsafe {
                inner(args, scratch)
            }
        }
        kernel as $crate::MatmulFn
    }};
}
pub(super) use compiled;
