//! The functions behind [`quantize`](crate::quantize), unchecked, one per format: inlined, so that a caller compiles them for its ISA. If lengths disagree, whole
//! blocks of the shorter one are written; an importance must have as many values as there are weights.

pub use crate::iq1_m::search as iq1_m;
pub use crate::iq1_s::search as iq1_s;
pub use crate::iq2_s::search as iq2_s;
pub use crate::iq2_xs::search as iq2_xs;
pub use crate::iq2_xxs::search as iq2_xxs;
pub use crate::iq3_s::search as iq3_s;
pub use crate::iq3_xxs::search as iq3_xxs;
pub use crate::iq4_nl::search as iq4_nl;
pub use crate::iq4_xs::search as iq4_xs;
pub use crate::mxfp4::search as mxfp4;
pub use crate::nvfp4::search as nvfp4;
pub use crate::q1_0::search as q1_0;
pub use crate::q2_0::search as q2_0;
pub use crate::q2_k::search as q2_k;
pub use crate::q3_k::search as q3_k;
pub use crate::q4_0::search as q4_0;
pub use crate::q4_1::search as q4_1;
pub use crate::q4_k::search as q4_k;
pub use crate::q5_0::search as q5_0;
pub use crate::q5_1::search as q5_1;
pub use crate::q5_k::search as q5_k;
pub use crate::q6_k::search as q6_k;
pub use crate::tq1_0::search as tq1_0;
pub use crate::tq2_0::search as tq2_0;
