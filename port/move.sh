#!/bin/bash
# moves torch modules into packages; run once in a tree that has MODEL's final modules
set -e
N="cells dropout initialisation language_model mogrifier products row_model stack state window"
T="bases factors fast_weights full graphs rules subspace"
cd model/rlstm_model; mkdir -p network torch_backend
for f in $N; do git mv $f.py network/$f.py; done
for f in $T; do git mv adaptation/$f.py torch_backend/$f.py; done
cd ../..
files() { git ls-files -co --exclude-standard | grep '\.py$'; }
for f in $N; do files | xargs grep -lE "rlstm_model\.$f\b" | xargs -r sed -i -E "s/rlstm_model\.$f\b/rlstm_model.network.$f/g"; done
for f in $T; do files | xargs grep -lE "rlstm_model\.adaptation\.$f\b" | xargs -r sed -i -E "s/rlstm_model\.adaptation\.$f\b/rlstm_model.torch_backend.$f/g"; done
files | xargs grep -lE "rlstm_model\.adaptation\.adapted_state\b" | xargs -r sed -i -E "s/rlstm_model\.adaptation\.adapted_state\b/rlstm_model.adaptation.state/g"
