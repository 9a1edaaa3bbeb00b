import re,glob,os
for p in glob.glob('tests/training/**/*.py',recursive=True):
    s=o=open(p).read()
    s=re.sub(r"load_calibration\(((?:[^()]|\([^()]*\))*?), (checkpoint|load\(trained\))\.model\)",r"load_calibration(\1, \2.parameters.config)",s)
    s=re.sub(r"\b(checkpoint|load\(trained\)|load\(tmp_path / \"model\"\)|load\(run / \"tiny\"\))\.model\.config",r"\1.parameters.config",s)
    s=re.sub(r"\b(checkpoint|load\(trained\)|load\(tmp_path / \"model\"\)|load\(run / \"tiny\"\))\.model\b",r"LanguageModel.of(\1.parameters)",s)
    if 'DynamicEvaluator(' in s:
        s=s.replace("DynamicEvaluator(","evaluator_of(").replace("from rlstm_model.adaptation.evaluator import DynamicEvaluator\n","from rlstm_training.evaluation.evaluation import evaluator_of\n")
    s=s.replace("from rlstm_model.adaptation.calibration import load_calibration","from rlstm_model.adaptation.calibration_file import load_calibration").replace("from rlstm_model.adaptation.calibration import CalibrationError","from rlstm_model.adaptation.calibration_file import CalibrationError")
    if 'LanguageModel.of(' in s and 'import LanguageModel' not in s:
        s=re.sub(r"^(from rlstm_model)",r"from rlstm_model.network.language_model import LanguageModel\n\1",s,count=1,flags=re.M)
    if s!=o: open(p,'w').write(s)
