import numpy as np, ctypes, sys, os
L=ctypes.CDLL('/tmp/memmix.so'); L.fixedshare.restype=ctypes.c_double
P=lambda a:a.ctypes.data_as(ctypes.c_void_p)
def fs(rows,share=-1.,ctx=None,C=1):
    lp=np.ascontiguousarray(np.array(rows),np.float64); out=np.zeros(lp.shape[1]); c=None if ctx is None else np.ascontiguousarray(ctx,np.int32)
    b=L.fixedshare(len(rows),lp.shape[1],P(lp),None if c is None else P(c),C,ctypes.c_double(share),ctypes.c_double(0),P(out)); return b,out
goal={'logs-15':(1.309,1.245,1.10),'domains-10':(2.049,1.793,1.70),'languages-4':(2.307,1.983,1.92),'wikitext-2':(1.979,1.729,1.68),'authors-recurring':(1.903,1.847,1.82),'stationary-control':(0,0,1.75)}
for s in goal:
    p='/tmp/memcap_%s.npz'%s
    if not os.path.exists(p): continue
    d=np.load(p); nb=int(d['nbytes']); f,a=d['base'].astype(float)
    print(s,nb,'frozen %.3f adapted %.3f both %.3f'%(-f.sum()/nb/np.log(2),-a.sum()/nb/np.log(2),fs([f,a])[0]/nb),'goals',goal[s])
    for cap in (8192,32768):
        for k in 'ABCDE':
            fm,am=d['%s_%d'%(k,cap)].astype(float); m=d['m_%s_%d'%(k,cap)]; C=int(m.max())+1
            r=[]
            for nm,rows in (('mem',[f,fm]),('both',[f,a,fm,am]),('2',[a,am]),('3',[f,a,am])):
                r.append(nm+' '+' '.join('%.3f'%(fs(rows,sh,cx,C)[0]/nb) for sh,cx in ((-1,None),(.01,None),(-1,m),(.01,m),(.004,m))))
            print('  ',k,cap,' | '.join(r))
