import json,lzma,sys,time,numpy as np
sys.path.insert(0,'/work/wt/native/model')
from rlstm_model import checkpoint, native
from rlstm_model.adaptation import batch
from rlstm_model.adaptation.calibration_file import load_calibration
from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.native.memory import Memory, Order
ck=checkpoint.load("bytes-small"); cal=load_calibration(ck.adaptation_file,ck.parameters.config).choose()
ev=DynamicEvaluator.of(ck.parameters,cal,bos_id=ck.vocab.bos_id,logprobs_only=True,threads=1)
S=json.load(open('/work/shared/data/streams.json'))
D='/work/shared/data/'
CONF={
 'A':[Order(n,(.5,.75,.9),1.0) for n in (3,4,6,8)],
 'B':[Order(n,(.5,.75,.9),1.0) for n in (4,6,8,12)],
 'C':[Order(n,(.5,.75,.9),.5) for n in (2,3,4,5,6,8,12)],
 'D':[Order(n,(.3,.5,.6),.5) for n in (2,3,4,5,6,8,12,16)],
 'E':[Order(n,(.7,.9,1.1),.3) for n in (3,4,5,6,8,12,16,24)],
}
caps=[8192,32768]
name=sys.argv[1]
if name=='wikitext-2': data=lzma.open(D+'wikitext-2/'+[f for f in __import__('os').listdir(D+'wikitext-2') if 'test' in f][0]).read()[:50000]
else:
    data=b''.join(lzma.open(D+s['file']).read()[s['start']:s['start']+min(s['length'],5000)] for s in S[name]['segments'])
ids=ck.vocab.encode(data.decode('utf8','replace')).ids
mems={(k,c):Memory(256,v,c) for k,v in CONF.items() for c in caps}
rec={('base',):[]}
orig=batch._observed
def hooked(chunk,reads):
    n=len(chunk.ids); tv=[r.log_probs_TV[-n:] for r in reads]
    rec[('base',)].append(np.stack([batch._of_targets(x,chunk.ids) for x in tv]))
    for key,m in mems.items():
        out,mt=m.read(tv,chunk.ids)
        rec.setdefault(key,[]).append(np.stack([batch._of_targets(x,chunk.ids) for x in out]))
        rec.setdefault(('m',)+key,[]).append(mt)
    return orig(chunk,reads)
batch._observed=hooked
t=time.time(); st=ev.start(experts=2)
for o in ev.observe(st,ids): pass
np.savez('/tmp/memcap_%s.npz'%name, **{'_'.join(map(str,k)):np.concatenate(v,-1) for k,v in rec.items()}, nbytes=len(data))
print(name,len(ids),time.time()-t)
